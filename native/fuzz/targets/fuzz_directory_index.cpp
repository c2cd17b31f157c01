// Bodies of EXISTS, LOOKUP and PLACE, and journals, of any segments in any order: the index answers as a plain map would.
#include <algorithm>
#include <map>

#include "fuzz.hpp"
#include "master/directory_index.hpp"

namespace kvstore::fuzz {
namespace {

using wire::Op;

constexpr uint32_t kSegments = 4;
constexpr size_t kJournalHeadBytes = 24;

// What each segment holds, by fingerprint.
using Model = std::map<std::pair<uint64_t, uint64_t>, std::map<uint32_t, uint32_t>>;

// Groups that the index has taken.
void apply_to_model(Model& model, uint32_t segment, wire::Reader groups) {
  while (groups.left() > 0) {
    const uint8_t op = groups.u8("op");
    groups.bytes(3, "reserved");
    const uint32_t count = groups.u32("count");
    groups.bytes(kNamespaceBytes, "namespace");
    const uint8_t* fingerprints = groups.bytes(size_t{count} * kFingerprintBytes, "fingerprints");
    const uint8_t* lengths = groups.bytes(size_t{count} * 4, "lengths");
    for (uint32_t i = 0; i < count; ++i) {
      std::pair<uint64_t, uint64_t> key;
      std::memcpy(&key.first, fingerprints + size_t{i} * 16, 8);
      std::memcpy(&key.second, fingerprints + size_t{i} * 16 + 8, 8);
      if (op == 1)
        model[key][segment] = wire::u32_at(lengths, i);
      else
        model[key].erase(segment);
    }
  }
}

void check_exists(const Model& model, wire::Reader body, const wire::Writer& reply) {
  body.bytes(kNamespaceBytes, "namespace");
  const uint32_t count = body.u32("count");
  body.u32("reserved");
  HOLDS(reply.size() == 8 + (size_t{count} + 7) / 8);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t lo = body.u64("lo"), hi = body.u64("hi");
    const auto found = model.find({lo, hi});
    const bool there = found != model.end() && !found->second.empty();
    HOLDS((reply.data()[8 + i / 8] >> (i % 8) & 1) == (there ? 1 : 0));
  }
}

void check_all(Model& model, DirectoryIndex& index) {
  uint64_t entries = 0, bytes = 0;
  for (const auto& [key, holders] : model) {
    const auto found = index.find({key.first, key.second});
    HOLDS(found.has_value() == !holders.empty());
    for (const auto& [segment, length] : holders) ++entries, bytes += length;
  }
  HOLDS(index.entry_count() == entries);
  uint64_t listed = 0, used = 0;
  for (uint32_t segment = 0; segment < kSegments; ++segment) {
    used += index.segment_usage(segment).bytes;
    DirectoryIndex::Snapshot snapshot(index, segment, 5);
    while (const auto chunk = snapshot.next()) listed += DirectoryIndex::check(chunk->data(), chunk->size());
  }
  HOLDS(listed == entries && used == bytes);
}

void answer(Model& model, DirectoryIndex& index, const wire::Header& header, const uint8_t* body,
            size_t size) {
  const uint32_t segment = header.request_id % kSegments;
  switch (static_cast<Op>(header.op)) {
    case Op::kExists:
      check_exists(model, {body, size}, index.exists(body, size));
      break;
    case Op::kLookup:
      HOLDS(index.lookup(body, size).size() >= 8);
      break;
    case Op::kPlace:
      HOLDS(index.place(body, size, {0, segment}, 1000).size() >= 8);
      (void)index.place_demand(body, size);
      break;
    case Op::kJournal:
      if (size < kJournalHeadBytes) return;
      index.apply(segment, body + kJournalHeadBytes, size - kJournalHeadBytes);
      apply_to_model(model, segment, {body + kJournalHeadBytes, size - kJournalHeadBytes});
      break;
    case Op::kBumpNamespace:
      index.drop_segment(segment);
      while (index.sweep(3) > 0) {
      }
      for (auto& [key, holders] : model) holders.erase(segment);
      break;
    default:
      break;
  }
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  Bytes all;
  for (const Golden& golden : golden_frames()) {
    if (golden.kind != "request") continue;
    for (const char* name : {"journal", "exists", "lookup", "place", "bump_namespace"})
      if (golden.name == name) {
        seeds.push_back({golden.name, golden.frame});
        all.insert(all.end(), golden.frame.begin(), golden.frame.end());
      }
  }
  seeds.push_back({"all", all});
  const Bytes once = all;
  all.insert(all.end(), once.begin(), once.end());
  seeds.push_back({"all_twice", all});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Model model;
  DirectoryIndex index;
  for (uint32_t segment = 0; segment < kSegments; ++segment) index.set_serving(segment, true);
  while (size >= wire::kHeaderBytes) {
    wire::Header header;
    try {
      header = wire::decode_header(data);
    } catch (const wire::WireError&) {
      break;
    }
    const uint8_t* const body = data + wire::kHeaderBytes;
    const size_t bytes = std::min<size_t>(header.body_bytes, size - wire::kHeaderBytes);
    try {
      answer(model, index, header, body, bytes);
    } catch (const wire::WireError& refused) {
      HOLDS(refused.what()[0] != '\0');
    }
    data += wire::kHeaderBytes + bytes, size -= wire::kHeaderBytes + bytes;
  }
  check_all(model, index);
  return 0;
}

}  // namespace kvstore::fuzz
