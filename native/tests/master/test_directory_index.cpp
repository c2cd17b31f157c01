#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.hpp"
#include "master/directory_index.hpp"

using namespace kvstore;

namespace {

constexpr uint8_t kAdd = 1, kRemove = 2;

NamespaceId ns_of(uint8_t i) { return {i, 1, 2, 3, 4, 5, 6, 7}; }

Fingerprint fp_of(uint64_t i) {
  // Two thirds look random, one third collide in everything but a few bits.
  if (i % 3 == 0) return {i << 40, 0};
  std::mt19937_64 rng(i);
  return {rng(), rng()};
}

void group(wire::Writer& out, uint8_t op, const NamespaceId& ns,
           const std::vector<std::pair<Fingerprint, uint32_t>>& entries) {
  out.u8(op).zeros(3).u32(static_cast<uint32_t>(entries.size())).raw(ns.data(), ns.size());
  for (const auto& [f, length] : entries) out.u64(f.lo).u64(f.hi);
  for (const auto& [f, length] : entries) out.u32(length);
}

DirectoryIndex::Applied apply(DirectoryIndex& index, uint32_t segment, uint8_t op, const NamespaceId& ns,
                              const std::vector<std::pair<Fingerprint, uint32_t>>& entries) {
  wire::Writer out;
  group(out, op, ns, entries);
  return index.apply(segment, out.data(), out.size());
}

wire::Writer body(uint32_t word, const std::vector<Fingerprint>& fps,
                  const std::vector<uint32_t>* lengths = nullptr) {
  wire::Writer out;
  out.zeros(8).u32(static_cast<uint32_t>(fps.size())).u32(word);
  if (lengths != nullptr)
    for (uint32_t length : *lengths) out.u32(length);
  for (const Fingerprint& f : fps) out.u64(f.lo).u64(f.hi);
  return out;
}

std::vector<bool> exists(const DirectoryIndex& index, const std::vector<Fingerprint>& fps) {
  const wire::Writer request = body(0, fps);
  const wire::Writer reply = index.exists(request.data(), request.size());
  wire::Reader reader(reply.data(), reply.size());
  CHECK_EQ(reader.u32("count"), fps.size());
  reader.u32("reserved");
  const uint8_t* bits = reader.bytes((fps.size() + 7) / 8, "bits");
  std::vector<bool> out;
  for (size_t i = 0; i < fps.size(); ++i) out.push_back((bits[i / 8] >> (i % 8) & 1) != 0);
  return out;
}

struct Looked {
  std::vector<std::set<uint32_t>> segments;
  std::vector<uint32_t> lengths;
};

Looked lookup(const DirectoryIndex& index, const std::vector<Fingerprint>& fps, uint8_t replicas) {
  const wire::Writer request = body(replicas, fps);
  const wire::Writer reply = index.lookup(request.data(), request.size());
  wire::Reader reader(reply.data(), reply.size());
  const uint32_t count = reader.u32("count");
  CHECK_EQ(reader.u32("replicas"), uint32_t{replicas});
  Looked out{std::vector<std::set<uint32_t>>(count), {}};
  for (uint32_t r = 0; r < replicas; ++r)
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t segment = reader.u32("segment");
      if (segment != wire::kNoSegment) out.segments[i].insert(segment);
    }
  for (uint32_t i = 0; i < count; ++i) out.lengths.push_back(reader.u32("length"));
  CHECK_EQ(reader.left(), size_t{0});
  return out;
}

// How many entries were freed.
uint64_t sweep_all(DirectoryIndex& index) {
  uint64_t swept = 0;
  while (const uint64_t slice = index.sweep(100)) swept += slice;
  return swept;
}

uint64_t drop(DirectoryIndex& index, uint32_t segment) {
  index.drop_segment(segment);
  return sweep_all(index);
}

// The same thing, done the obvious way.
struct Model {
  std::map<std::pair<uint64_t, uint64_t>, std::map<uint32_t, std::pair<uint32_t, uint8_t>>> entries;
  std::set<uint32_t> silent;

  DirectoryIndex::Usage usage(uint32_t segment) const {
    DirectoryIndex::Usage u;
    for (const auto& [f, holders] : entries)
      if (const auto it = holders.find(segment); it != holders.end())
        ++u.entries, u.bytes += it->second.first;
    return u;
  }
  bool served(const Fingerprint& f) const {
    const auto it = entries.find({f.lo, f.hi});
    if (it == entries.end()) return false;
    for (const auto& [segment, value] : it->second)
      if (silent.count(segment) == 0) return true;
    return false;
  }
};

}  // namespace

TEST(random_operations_agree_with_a_map) {
  for (uint64_t seed : {1u, 2u, 3u}) {
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 rng(seed);
    DirectoryIndex index;
    Model model;
    constexpr uint64_t kKeys = 4000;
    constexpr uint32_t kSegments = 6;
    for (int step = 0; step < 3000; ++step) {
      const auto segment = static_cast<uint32_t>(rng() % kSegments);
      const uint64_t dice = rng() % 100;
      if (dice < 90) {
        wire::Writer batch;
        DirectoryIndex::Applied want;
        for (uint64_t g = 0, groups = 1 + rng() % 3; g < groups; ++g) {
          const bool add = rng() % 100 < (step / 500 % 2 == 0 ? 70u : 30u);
          std::vector<std::pair<Fingerprint, uint32_t>> entries;
          const uint8_t ns = rng() % 3;
          for (uint64_t i = 0, n = rng() % 24; i < n; ++i) {
            const Fingerprint f = fp_of(rng() % kKeys);
            const auto length = static_cast<uint32_t>(rng() % 100000);
            entries.emplace_back(f, length);
            auto& holders = model.entries[{f.lo, f.hi}];
            if (add)
              want.added += holders.insert_or_assign(segment, std::make_pair(length, ns)).second;
            else
              want.removed += holders.erase(segment);
            if (holders.empty()) model.entries.erase({f.lo, f.hi});
          }
          group(batch, add ? kAdd : kRemove, ns_of(ns), entries);
        }
        const auto got = index.apply(segment, batch.data(), batch.size());
        CHECK_EQ(got.added, want.added);
        CHECK_EQ(got.removed, want.removed);
      } else if (dice < 92) {
        uint64_t want = 0;
        for (auto it = model.entries.begin(); it != model.entries.end();) {
          want += it->second.erase(segment);
          it = it->second.empty() ? model.entries.erase(it) : std::next(it);
        }
        CHECK_EQ(drop(index, segment), want);
      } else {
        const bool serving = rng() % 2 == 0;
        index.set_serving(segment, serving);
        if (serving)
          model.silent.erase(segment);
        else
          model.silent.insert(segment);
      }
      if (step % 50 != 0) continue;
      std::vector<Fingerprint> fps;
      for (int i = 0; i < 333; ++i) fps.push_back(fp_of(rng() % (kKeys + 500)));
      const auto there = exists(index, fps);
      const auto looked = lookup(index, fps, 4);
      for (size_t i = 0; i < fps.size(); ++i) {
        CHECK_EQ(there[i], model.served(fps[i]));
        CHECK_EQ(looked.segments[i].empty(), !there[i]);
        for (uint32_t holder : looked.segments[i]) {
          const auto& held = model.entries.at({fps[i].lo, fps[i].hi});
          CHECK(model.silent.count(holder) == 0);
          CHECK_EQ(held.at(holder).first, looked.lengths[i]);
        }
      }
      uint64_t total = 0;
      std::map<NamespaceId, uint64_t> per_ns;
      std::map<NamespaceId, std::map<uint32_t, uint64_t>> parts;
      for (const auto& [f, holders] : model.entries) {
        total += holders.size();
        for (const auto& [holder, value] : holders) {
          ++per_ns[ns_of(value.second)];
          parts[ns_of(value.second)][holder] += value.first;
        }
      }
      CHECK_EQ(index.entry_count(), total);
      for (uint32_t s = 0; s < kSegments; ++s) {
        CHECK_EQ(index.segment_usage(s).entries, model.usage(s).entries);
        CHECK_EQ(index.segment_usage(s).bytes, model.usage(s).bytes);
      }
      const auto usage = index.namespace_usage();
      CHECK_EQ(usage.size(), per_ns.size());
      for (const auto& [id, u] : usage) {
        CHECK_EQ(u.entries, per_ns.at(id));
        std::map<uint32_t, uint64_t> told;
        for (const auto& [segment, part] : index.namespace_parts(id)) told[segment] = part.bytes;
        CHECK(told == parts.at(id));
      }
    }
  }
}

TEST(grows_to_a_million_and_never_takes_more_than_64_bytes_an_entry) {
  DirectoryIndex index;
  constexpr uint64_t kCount = 1000000, kBatch = 10000;
  std::mt19937_64 rng(4);
  std::vector<std::pair<Fingerprint, uint32_t>> all;
  for (uint64_t i = 0; i < kCount; ++i) all.push_back({{rng(), rng()}, 1000});
  for (uint64_t i = 0; i < kCount; i += kBatch) {
    apply(index, static_cast<uint32_t>(i / kBatch % 4), kAdd, ns_of(1),
          {all.begin() + static_cast<long>(i), all.begin() + static_cast<long>(i + kBatch)});
    // But for a chunk of locations that has just been begun.
    if (i >= 100000) CHECK(index.memory_bytes() <= 64 * index.entry_count() + (640u << 10));
  }
  CHECK_EQ(index.entry_count(), kCount);
  std::vector<Fingerprint> some;
  for (uint64_t i = 0; i < kCount; i += 997) some.push_back(all[i].first);
  for (bool found : exists(index, some)) CHECK(found);
  index.drop_segment(2);
  CHECK_EQ(index.sweep(1000), uint64_t{1000});
  CHECK_EQ(sweep_all(index), kCount / 4 - 1000);
  CHECK_EQ(drop(index, 2), uint64_t{0});
  CHECK_EQ(index.entry_count(), kCount * 3 / 4);
}

TEST(churn_does_not_grow_memory) {
  DirectoryIndex index;
  std::mt19937_64 rng(5);
  uint64_t settled = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<Fingerprint, uint32_t>> entries;
    for (int i = 0; i < 5000; ++i) entries.push_back({{rng(), rng()}, 10});
    apply(index, 0, kAdd, ns_of(static_cast<uint8_t>(round)), entries);
    apply(index, 0, kRemove, ns_of(static_cast<uint8_t>(round)), entries);
    if (round == 1) settled = index.memory_bytes();
  }
  CHECK_EQ(index.entry_count(), uint64_t{0});
  CHECK_EQ(index.memory_bytes(), settled);
}

TEST(a_malformed_batch_changes_nothing) {
  DirectoryIndex index;
  wire::Writer batch;
  group(batch, kAdd, ns_of(1), {{fp_of(1), 10}, {fp_of(2), 20}});
  group(batch, kAdd, ns_of(1), {{fp_of(4), 30}});
  const size_t first_group = 16 + 2 * 20;
  for (size_t cut = 1; cut < batch.size(); ++cut) {
    if (cut == first_group) continue;  // that is a whole batch
    CHECK_THROWS(index.apply(0, batch.data(), cut), wire::WireError);
  }
  wire::Writer bad_op = batch;
  bad_op.buffer()[first_group] = 3;
  CHECK_THROWS(index.apply(0, bad_op.data(), bad_op.size()), wire::WireError);
  wire::Writer too_long = batch;
  too_long.buffer()[too_long.size() - 1] = 0x7F;
  CHECK_THROWS(index.apply(0, too_long.data(), too_long.size()), wire::WireError);
  CHECK_THROWS(index.apply(DirectoryIndex::kSegmentsMax, batch.data(), batch.size()), wire::WireError);
  CHECK_EQ(index.entry_count(), uint64_t{0});
  CHECK(index.namespace_usage().empty());
}

TEST(a_batch_has_a_most_of_entries_however_many_groups_they_are_in) {
  DirectoryIndex index;
  std::vector<std::pair<Fingerprint, uint32_t>> entries;
  for (uint64_t i = 0; i < wire::kEntriesMax; ++i) entries.push_back({{i, i}, 10});
  wire::Writer most;
  group(most, kAdd, ns_of(1), entries);
  CHECK_EQ(DirectoryIndex::check(most.data(), most.size()), uint64_t{wire::kEntriesMax});
  group(most, kRemove, ns_of(1), {{fp_of(1), 0}});
  try {
    index.apply(0, most.data(), most.size());
    CHECK(false);
  } catch (const wire::WireError& e) {
    CHECK_EQ(e.status, wire::Status::kTooLarge);
  }
  CHECK_EQ(index.entry_count(), uint64_t{0});
}

TEST(malformed_queries_are_refused) {
  DirectoryIndex index;
  const std::vector<uint32_t> lengths = {5, 6, 7};
  const wire::Writer query = body(1, {fp_of(1), fp_of(2), fp_of(3)});
  const wire::Writer place = body(wire::kNoSegment, {fp_of(1), fp_of(2), fp_of(3)}, &lengths);
  for (size_t cut = 0; cut < query.size(); ++cut) {
    CHECK_THROWS(index.exists(query.data(), cut), wire::WireError);
    CHECK_THROWS(index.lookup(query.data(), cut), wire::WireError);
  }
  for (size_t cut = 0; cut < place.size(); ++cut) {
    CHECK_THROWS(index.place(place.data(), cut, {1}, 100), wire::WireError);
    CHECK_THROWS(index.place_demand(place.data(), cut), wire::WireError);
  }
  for (uint8_t replicas : {0, 5, 255}) {
    const wire::Writer bad = body(replicas, {fp_of(1)});
    CHECK_THROWS(index.lookup(bad.data(), bad.size()), wire::WireError);
  }
  wire::Writer huge;
  huge.zeros(8).u32(wire::kEntriesMax + 1).u32(0);
  try {
    index.exists(huge.data(), huge.size());
    CHECK(false);
  } catch (const wire::WireError& e) {
    CHECK_EQ(e.status, wire::Status::kTooLarge);
  }
}

TEST(place_stripes_the_absent_in_runs) {
  DirectoryIndex index;
  apply(index, 3, kAdd, ns_of(1), {{fp_of(1), 100}});
  const std::vector<uint32_t> lengths(6, 100);
  const wire::Writer request =
      body(0, {fp_of(1), fp_of(2), fp_of(4), fp_of(5), fp_of(7), fp_of(8)}, &lengths);
  const auto placed = [&](const std::vector<uint32_t>& segments) {
    const wire::Writer reply = index.place(request.data(), request.size(), segments, 200);
    wire::Reader reader(reply.data(), reply.size());
    reader.bytes(8, "count and reserved");
    std::vector<uint32_t> out;
    while (reader.left() > 0) out.push_back(reader.u32("segment"));
    return out;
  };
  CHECK(placed({7, 9}) == (std::vector<uint32_t>{wire::kAlreadyThere, 7, 7, 9, 9, 7}));
  CHECK(placed({}) == (std::vector<uint32_t>{wire::kAlreadyThere, wire::kNoSegment, wire::kNoSegment,
                                             wire::kNoSegment, wire::kNoSegment, wire::kNoSegment}));
  const std::vector<uint32_t> other(1, 101);
  const wire::Writer disagreeing = body(0, {fp_of(1)}, &other);
  const wire::Writer refused = index.place(disagreeing.data(), disagreeing.size(), {7, 9}, 200);
  wire::Reader answer(refused.data(), refused.size());
  answer.bytes(8, "count and reserved");
  CHECK_EQ(answer.u32("segment"), wire::kOtherLength);
  const auto demand = index.place_demand(request.data(), request.size());
  CHECK_EQ(demand.entries, uint64_t{5});
  CHECK_EQ(demand.bytes, uint64_t{500});
}

TEST(copies_are_placed_on_different_hosts_and_those_that_are_there_count) {
  DirectoryIndex index;
  for (const auto& [segment, host] :
       std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}, {1, 1}, {2, 2}, {3, 3}})
    index.set_host(segment, host);
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 100}, {fp_of(2), 100}});
  apply(index, 2, kAdd, ns_of(1), {{fp_of(2), 100}});
  const std::vector<uint32_t> lengths = {100, 100, 100};
  const wire::Writer request = body(0, {fp_of(1), fp_of(2), fp_of(3)}, &lengths);
  const auto placed = [&](uint32_t replicas, const std::vector<std::vector<uint32_t>>& stripes) {
    const auto answer = index.place_copies(request.data(), request.size(), replicas, stripes, 1000);
    wire::Reader reader(answer.reply.data(), answer.reply.size());
    CHECK_EQ(reader.u32("count"), 3u);
    reader.u32("reserved");
    std::vector<uint32_t> out;
    for (int i = 0; i < 3; ++i) out.push_back(reader.u32("segment"));
    CHECK_EQ(reader.u32("replicas"), replicas);
    reader.u32("reserved");
    while (reader.left() > 0) out.push_back(reader.u32("segment"));
    out.push_back(static_cast<uint32_t>(answer.beside));
    out.push_back(static_cast<uint32_t>(answer.short_of));
    return out;
  };
  constexpr uint32_t kThere = wire::kAlreadyThere, kNone = wire::kNoSegment;
  CHECK(placed(2, {{1, 2}}) == (std::vector<uint32_t>{kThere, kThere, 1, 2, kNone, 2, 0, 0}));
  // Segment 1 is on the host of 0: taken for want of another, and counted.
  CHECK(placed(2, {{1, 0}}) == (std::vector<uint32_t>{kThere, kThere, 1, 1, kNone, 0, 2, 0}));
  CHECK(placed(2, {{3}}) == (std::vector<uint32_t>{kThere, kThere, 3, 3, kNone, kNone, 0, 1}));
  CHECK(placed(3, {{2, 3, 0}}) == (std::vector<uint32_t>{kThere, kThere, 2, 2, 3, 3, 3, kNone, 0, 0, 0}));
  CHECK(placed(2, {}) == (std::vector<uint32_t>{kThere, kThere, kNone, kNone, kNone, kNone, 0, 1}));
  const auto demand = index.place_demand(request.data(), request.size(), 2);
  CHECK_EQ(demand.entries, uint64_t{3});
  CHECK_EQ(demand.bytes, uint64_t{300});
  index.set_vouched(2, false);
  CHECK(placed(2, {{3, 1}})[4] == 3);
  CHECK_THROWS(index.place_copies(request.data(), request.size(), 5, {{1}}, 1000), wire::WireError);
}

TEST(only_what_a_segment_that_is_vouched_for_holds_is_already_there) {
  DirectoryIndex index;
  for (uint32_t segment = 0; segment < 2; ++segment) {
    index.set_serving(segment, true);
    apply(index, segment, kAdd, ns_of(1), {{fp_of(1), 100}});
  }
  const std::vector<uint32_t> lengths(1, 100);
  const wire::Writer request = body(0, {fp_of(1)}, &lengths);
  const auto placed = [&] {
    const wire::Writer reply = index.place(request.data(), request.size(), {7}, 200);
    wire::Reader reader(reply.data(), reply.size());
    reader.bytes(8, "count and reserved");
    return reader.u32("segment");
  };
  for (uint32_t doubtful = 0; doubtful < 2; ++doubtful) {
    index.set_vouched(doubtful, false);
    CHECK_EQ(placed(), wire::kAlreadyThere);  // at the other
    index.set_vouched(1 - doubtful, false);
    CHECK_EQ(placed(), 7u);
    CHECK_EQ(index.place_demand(request.data(), request.size()).entries, uint64_t{1});
    CHECK(exists(index, {fp_of(1)})[0]);  // it is read all the same
    index.set_vouched(0, true);
    index.set_vouched(1, true);
  }
}

TEST(what_an_inventory_did_not_name_is_not_already_there_though_it_is_not_swept_yet) {
  DirectoryIndex index;
  index.set_serving(0, true);
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 100}, {fp_of(2), 100}});
  index.begin_inventory(0);
  apply(index, 0, kAdd, ns_of(1), {{fp_of(2), 100}});
  index.end_inventory(0);
  const std::vector<uint32_t> lengths(1, 100);
  const auto placed = [&](int n) {
    const wire::Writer request = body(0, {fp_of(n)}, &lengths);
    const wire::Writer reply = index.place(request.data(), request.size(), {7}, 200);
    wire::Reader reader(reply.data(), reply.size());
    reader.bytes(8, "count and reserved");
    return reader.u32("segment");
  };
  CHECK_EQ(placed(1), 7u);
  while (index.sweep(1) > 0) {
  }
  CHECK_EQ(placed(1), 7u);
  CHECK_EQ(placed(2), wire::kAlreadyThere);
}

TEST(holders_that_disagree_on_the_length_are_not_mixed) {
  DirectoryIndex index;
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 100}});
  apply(index, 1, kAdd, ns_of(1), {{fp_of(1), 100}});
  apply(index, 2, kAdd, ns_of(1), {{fp_of(1), 999}});
  const auto looked = lookup(index, {fp_of(1)}, 4);
  CHECK((looked.lengths[0] == 999 && looked.segments[0] == std::set<uint32_t>{2}) ||
        (looked.lengths[0] == 100 && looked.segments[0] == std::set<uint32_t>{0, 1}));
  CHECK_EQ(index.find(fp_of(1))->segments.size(), size_t{3});
}

TEST(a_holder_that_does_not_serve_is_no_replica) {
  DirectoryIndex index;
  for (uint32_t segment = 0; segment < 3; ++segment) {
    index.set_serving(segment, true);
    apply(index, segment, kAdd, ns_of(1), {{fp_of(1), 100}});
  }
  for (uint32_t silent = 0; silent < 3; ++silent) {
    index.set_serving(silent, false);
    std::set<uint32_t> others{0, 1, 2};
    others.erase(silent);
    CHECK(lookup(index, {fp_of(1)}, 4).segments[0] == others);
    index.set_serving(silent, true);
  }
}

TEST(an_inventory_removes_what_it_does_not_name) {
  DirectoryIndex index;
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}, {fp_of(2), 2}, {fp_of(4), 4}});
  apply(index, 1, kAdd, ns_of(1), {{fp_of(2), 2}});
  for (int round = 0; round < 3; ++round) {
    index.begin_inventory(0);
    apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}});
    // The first round is abandoned half-way, and begun again.
    if (round == 0) continue;
    apply(index, 0, kAdd, ns_of(1), {{fp_of(5), 5}});
    index.end_inventory(0);
    CHECK_EQ(sweep_all(index), uint64_t(round == 1 ? 2 : 0));
  }
  CHECK(exists(index, {fp_of(1), fp_of(2), fp_of(4), fp_of(5)}) ==
        (std::vector<bool>{true, true, false, true}));
  CHECK(index.find(fp_of(2))->segments == std::vector<uint32_t>{1});
}

TEST(a_snapshot_rebuilds_the_segment) {
  DirectoryIndex index, copy;
  std::mt19937_64 rng(6);
  for (uint8_t ns = 0; ns < 3; ++ns) {
    std::vector<std::pair<Fingerprint, uint32_t>> entries;
    for (int i = 0; i < 700; ++i) entries.push_back({{rng(), rng()}, static_cast<uint32_t>(rng() % 5000)});
    apply(index, 2, kAdd, ns_of(ns), entries);
  }
  DirectoryIndex::Snapshot snapshot(index, 2, 500);
  int chunks = 0;
  while (const auto chunk = snapshot.next()) copy.apply(9, chunk->data(), chunk->size()), ++chunks;
  CHECK_EQ(chunks, 5);
  CHECK_EQ(copy.segment_usage(9).entries, index.segment_usage(2).entries);
  CHECK_EQ(copy.segment_usage(9).bytes, index.segment_usage(2).bytes);
  CHECK_EQ(copy.namespace_usage().size(), size_t{3});
  CHECK(!DirectoryIndex::Snapshot(index, 77, 10).next());
  CHECK_THROWS(DirectoryIndex::Snapshot(index, 2, 0), wire::WireError);
}

TEST(a_snapshot_has_what_stays_while_other_entries_come_and_go) {
  DirectoryIndex index;
  std::vector<std::pair<Fingerprint, uint32_t>> staying, going;
  for (uint64_t i = 0; i < 3000; ++i) (i % 3 == 0 ? staying : going).push_back({fp_of(i), 10});
  apply(index, 0, kAdd, ns_of(2), staying);
  apply(index, 0, kAdd, ns_of(1), going);  // the newest come first in a snapshot
  apply(index, 1, kAdd, ns_of(1), going);
  DirectoryIndex::Snapshot snapshot(index, 0, 100);
  DirectoryIndex copy;
  for (uint64_t step = 0; const auto chunk = snapshot.next(); ++step) {
    copy.apply(0, chunk->data(), chunk->size());
    // Among them is the one that would come next; another segment's entries take its memory.
    const auto last = going.end() - std::min<long>(150, static_cast<long>(going.size()));
    apply(index, 0, kRemove, ns_of(1), {last, going.end()});
    apply(index, 3, kAdd, ns_of(3), {last, going.end()});
    going.erase(last, going.end());
  }
  CHECK(going.size() < 100);
  for (const auto& [f, length] : staying) CHECK(copy.find(f).has_value());
  CHECK(copy.namespace_usage(ns_of(3)).entries == 0);
}

TEST(a_snapshot_of_what_is_being_replaced_is_broken) {
  for (int how = 0; how < 4; ++how) {
    DirectoryIndex index;
    apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}, {fp_of(2), 2}, {fp_of(4), 4}});
    if (how == 3) index.begin_inventory(0);
    DirectoryIndex::Snapshot snapshot(index, 0, 1), other(index, 1, 1);
    CHECK(snapshot.next().has_value());
    if (how == 0) index.begin_inventory(0);
    if (how == 1) index.end_inventory(0);
    if (how == 2) index.drop_segment(0);
    if (how == 3) apply(index, 0, kAdd, ns_of(1), {{fp_of(4), 4}});
    CHECK_THROWS(snapshot.next(), DirectoryIndex::SnapshotBroken);
    CHECK(!other.next());
  }
}

TEST(what_is_doomed_is_there_until_it_is_swept_and_an_add_saves_it) {
  DirectoryIndex index;
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}, {fp_of(2), 2}, {fp_of(4), 4}});
  index.begin_inventory(0);
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}});
  index.end_inventory(0);
  CHECK(exists(index, {fp_of(1), fp_of(2), fp_of(4)}) == (std::vector<bool>{true, true, true}));
  apply(index, 0, kAdd, ns_of(1), {{fp_of(2), 2}});
  apply(index, 0, kRemove, ns_of(1), {{fp_of(1), 1}});
  CHECK_EQ(sweep_all(index), uint64_t{1});
  CHECK(exists(index, {fp_of(1), fp_of(2), fp_of(4)}) == (std::vector<bool>{false, true, false}));
}

// Inventories, drops and sweeps in slices against the sets that they mean.
TEST(inventories_drops_and_sweeps_interleaved_agree_with_sets) {
  for (uint64_t seed : {11u, 12u, 13u, 14u}) {
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 rng(seed);
    DirectoryIndex index;
    constexpr uint32_t kSegments = 3;
    constexpr uint64_t kKeys = 300;
    std::set<uint64_t> kept[kSegments], unconfirmed[kSegments], doomed[kSegments];
    const auto total = [&](const std::set<uint64_t>(&sets)[kSegments]) {
      size_t n = 0;
      for (const auto& each : sets) n += each.size();
      return n;
    };
    for (int step = 0; step < 20000; ++step) {
      const auto s = static_cast<uint32_t>(rng() % kSegments);
      const uint64_t dice = rng() % 100;
      const uint64_t key = rng() % kKeys;
      if (dice < 60) {
        const auto got = apply(index, s, kAdd, ns_of(1), {{fp_of(key), 7}});
        const size_t known = kept[s].count(key) + unconfirmed[s].erase(key) + doomed[s].erase(key);
        CHECK_EQ(got.added, uint64_t{1} - known);
        kept[s].insert(key);
      } else if (dice < 80) {
        const auto got = apply(index, s, kRemove, ns_of(1), {{fp_of(key), 7}});
        CHECK_EQ(got.removed, kept[s].erase(key) + unconfirmed[s].erase(key) + doomed[s].erase(key));
      } else if (dice < 83) {
        index.begin_inventory(s);
        unconfirmed[s].merge(kept[s]);
        kept[s].clear();
      } else if (dice < 85) {
        index.end_inventory(s);
        doomed[s].merge(unconfirmed[s]);
        unconfirmed[s].clear();
      } else if (dice < 86) {
        index.drop_segment(s);
        doomed[s].merge(kept[s]);
        doomed[s].merge(unconfirmed[s]);
        kept[s].clear(), unconfirmed[s].clear();
      } else {
        const uint64_t want = std::min<uint64_t>(rng() % 30, total(doomed));
        const uint64_t swept = index.sweep(want);
        CHECK_EQ(swept, want);
        // Which of them went is the index's business; that none but doomed ones did is not.
        for (uint32_t each = 0; each < kSegments; ++each) {
          std::set<uint64_t> left;
          for (const uint64_t k : doomed[each]) {
            const auto found = index.find(fp_of(k));
            if (found && std::count(found->segments.begin(), found->segments.end(), each) != 0)
              left.insert(k);
          }
          doomed[each] = left;
        }
      }
      CHECK_EQ(index.entry_count(), total(kept) + total(unconfirmed) + total(doomed));
      for (const auto* sets : {kept, unconfirmed})
        for (const uint64_t k : sets[s]) {
          const auto found = index.find(fp_of(k));
          CHECK(found && std::count(found->segments.begin(), found->segments.end(), s) == 1);
        }
    }
    sweep_all(index);
    CHECK_EQ(index.entry_count(), total(kept) + total(unconfirmed));
    for (uint32_t s = 0; s < kSegments; ++s) {
      CHECK_EQ(index.segment_usage(s).entries, kept[s].size() + unconfirmed[s].size());
      drop(index, s);
    }
    CHECK_EQ(index.entry_count(), uint64_t{0});
    CHECK(index.namespace_usage().empty());
  }
}

TEST(a_cleared_index_has_given_its_memory_back_and_can_be_used_again) {
  DirectoryIndex index;
  std::vector<std::pair<Fingerprint, uint32_t>> entries;
  for (uint64_t i = 0; i < 50000; ++i) entries.push_back({fp_of(i), 10});
  apply(index, 3, kAdd, ns_of(1), entries);
  index.begin_inventory(3);
  index.set_serving(3, false);
  DirectoryIndex::Snapshot snapshot(index, 3, 10);
  index.clear();
  CHECK(index.memory_bytes() <= DirectoryIndex().memory_bytes());
  CHECK_EQ(index.entry_count(), uint64_t{0});
  CHECK(index.namespace_usage().empty());
  CHECK_EQ(index.segment_usage(3).entries, uint64_t{0});
  CHECK_THROWS(snapshot.next(), DirectoryIndex::SnapshotBroken);
  apply(index, 0, kAdd, ns_of(1), {{fp_of(1), 1}});
  CHECK(exists(index, {fp_of(1), fp_of(2)}) == (std::vector<bool>{true, false}));
}

TEST(an_index_that_is_full_of_chosen_fingerprints_answers_as_fast) {
  // What would share one tag if everybody knew the hash: the same sum of both halves.
  constexpr uint64_t kCount = 40000;
  const auto seconds = [](bool chosen) {
    std::mt19937_64 rng(8);
    DirectoryIndex index;
    std::vector<std::pair<Fingerprint, uint32_t>> entries;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t half = chosen ? i << 40 : rng();
      entries.push_back({{half, chosen ? half << 32 | half >> 32 : rng()}, 1});
    }
    apply(index, 0, kAdd, ns_of(1), entries);
    std::vector<Fingerprint> fps;
    for (uint64_t i = 0; i < 1024; ++i) fps.push_back(entries[i * 39].first);
    const wire::Writer request = body(0, fps);
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      index.exists(request.data(), request.size());
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
  };
  const double random = seconds(false), chosen = seconds(true);
  std::fprintf(stderr, "exists of 1,024: %.0f us of random fingerprints, %.0f us of chosen ones\n",
               random * 1e6, chosen * 1e6);
  CHECK(chosen < 30 * random + 1e-4);
}

TEST(readers_and_a_writer_run_together) {
  DirectoryIndex index;
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&, t] {
      std::mt19937_64 rng(static_cast<uint64_t>(t));
      std::vector<Fingerprint> fps;
      for (int i = 0; i < 128; ++i) fps.push_back(fp_of(rng() % 3000));
      const wire::Writer request = body(2, fps);
      while (!stop) {
        index.exists(request.data(), request.size());
        index.lookup(request.data(), request.size());
        try {
          DirectoryIndex::Snapshot snapshot(index, 1, 100);
          while (snapshot.next()) {
          }
        } catch (const DirectoryIndex::SnapshotBroken&) {
        }
        index.find(fps[0]);
      }
    });
  std::mt19937_64 rng(9);
  for (int step = 0; step < 600; ++step) {
    std::vector<std::pair<Fingerprint, uint32_t>> entries;
    for (int i = 0; i < 64; ++i) entries.emplace_back(fp_of(rng() % 3000), 10);
    apply(index, static_cast<uint32_t>(rng() % 3), rng() % 2 ? kAdd : kRemove, ns_of(1), entries);
    if (step % 100 == 0) index.drop_segment(1);
    if (step % 10 == 0) index.sweep(50);
    if (step % 70 == 0) index.begin_inventory(2);
    if (step % 70 == 35) index.end_inventory(2);
    if (step % 50 == 0) index.set_serving(0, step % 100 == 0);
  }
  stop = true;
  for (auto& reader : readers) reader.join();
}

TEST_MAIN()
