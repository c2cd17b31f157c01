// Answers of the directory.
#include <algorithm>

#include "master/directory_index.hpp"
#include "master/object_length.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kProbeBlock = 32;  // fingerprints whose cache misses overlap

using wire::u32_at;

void check_count(uint32_t count) {
  if (count > wire::kEntriesMax)
    throw wire::WireError(wire::Status::kTooLarge, std::to_string(count) + " entries is over the cap of " +
                                                       std::to_string(wire::kEntriesMax) +
                                                       " a request: send fewer in each");
}

struct PlaceBody {
  uint32_t count;
  const uint8_t* lengths;
  const uint8_t* fingerprints;
};

PlaceBody read_place(const void* body, size_t bytes) {
  wire::Reader reader(body, bytes);
  reader.bytes(kNamespaceBytes, "namespace");
  PlaceBody place;
  place.count = reader.u32("count");
  check_count(place.count);
  reader.u32("preferred");
  place.lengths = reader.bytes(size_t{place.count} * 4, "lengths");
  place.fingerprints = reader.bytes(size_t{place.count} * kFingerprintBytes, "fingerprints");
  for (uint32_t i = 0; i < place.count; ++i) check_object_length(u32_at(place.lengths, i));
  return place;
}

}  // namespace

const Location* DirectoryIndex::first_serving(uint32_t head) const {
  for (uint32_t i = head; i != kNoLocation; i = locations_[i].chain_next)
    if (segments_[locations_[i].segment].serving) return &locations_[i];
  return nullptr;
}

const Location* DirectoryIndex::first_vouched(const Location* from) const {
  while (from != nullptr) {
    const Segment& holder = segments_[from->segment];
    if (holder.serving && holder.vouched && !holder.has_doomed) break;
    from = from->chain_next == kNoLocation ? nullptr : &locations_[from->chain_next];
  }
  return from;
}

uint32_t DirectoryIndex::vouched_holders(const Location* first, uint32_t* holders) const {
  uint32_t count = 0;
  for (const Location* at = first_vouched(first); at != nullptr && count < kReplicasMax;) {
    if (at->length == first->length) holders[count++] = at->segment;
    at = at->chain_next == kNoLocation ? nullptr : first_vouched(&locations_[at->chain_next]);
  }
  return count;
}

bool DirectoryIndex::share_host(uint32_t a, uint32_t b) const {
  const uint32_t host = a < segments_.size() ? segments_[a].host : 0;
  return host != 0 && b < segments_.size() && segments_[b].host == host;
}

template <typename Visit>
void DirectoryIndex::probe(const uint8_t* fingerprints, uint32_t count, Visit&& visit) const {
  Fingerprint block[kProbeBlock];
  uint32_t tags[kProbeBlock];
  for (uint32_t start = 0; start < count; start += kProbeBlock) {
    const uint32_t n = std::min(kProbeBlock, count - start);
    for (uint32_t i = 0; i < n; ++i) {
      block[i] = fingerprint_at(fingerprints, start + i);
      tags[i] = tag_of(block[i]);
      table_.prefetch(tags[i]);
    }
    for (uint32_t i = 0; i < n; ++i) prefetch_location(tags[i]);
    for (uint32_t i = 0; i < n; ++i)
      visit(start + i, first_serving(table_.find(tags[i], block[i], locations_).head));
  }
}

wire::Writer DirectoryIndex::exists(const void* body, size_t bytes) const {
  wire::Reader reader(body, bytes);
  reader.bytes(kNamespaceBytes, "namespace");
  const uint32_t count = reader.u32("count");
  check_count(count);
  reader.u32("reserved");
  const uint8_t* fingerprints = reader.bytes(size_t{count} * kFingerprintBytes, "fingerprints");

  wire::Writer reply(8 + (count + 7) / 8);
  reply.u32(count).u32(0).zeros((count + 7) / 8);
  uint8_t* bits = reply.buffer().data() + 8;
  const MutexLock lock(mutex_);
  probe(fingerprints, count, [&](uint32_t i, const Location* found) {
    if (found != nullptr) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1u << (i % 8));
  });
  return reply;
}

wire::Writer DirectoryIndex::lookup(const void* body, size_t bytes) const {
  wire::Reader reader(body, bytes);
  reader.bytes(kNamespaceBytes, "namespace");
  const uint32_t count = reader.u32("count");
  check_count(count);
  const uint8_t replicas = reader.u8("replicas");
  reader.bytes(3, "reserved");
  if (replicas == 0 || replicas > kReplicasMax)
    throw wire::WireError(wire::Status::kBadRequest,
                          "replicas is " + std::to_string(replicas) + ", must be 1 to 4");
  const uint8_t* fingerprints = reader.bytes(size_t{count} * kFingerprintBytes, "fingerprints");

  std::vector<uint32_t> out(size_t{count} * (replicas + size_t{1}), wire::kNoSegment);
  uint32_t* lengths = out.data() + size_t{count} * replicas;
  const MutexLock lock(mutex_);
  probe(fingerprints, count, [&](uint32_t i, const Location* found) {
    mutex_.assert_held();
    if (found == nullptr) {
      lengths[i] = 0;
      return;
    }
    lengths[i] = found->length;
    uint32_t filled = 0;
    // Holders that disagree on the length can't hold the same object: the reader gets those that agree with
    // the first.
    for (const Location* n = found; filled < replicas; n = &locations_[n->chain_next]) {
      if (n->length == found->length && segments_[n->segment].serving)
        out[size_t{filled++} * count + i] = n->segment;
      if (n->chain_next == kNoLocation) break;
    }
  });
  wire::Writer reply(8 + out.size() * 4);
  reply.u32(count).u32(replicas).raw(out.data(), out.size() * 4);
  return reply;
}

wire::Writer DirectoryIndex::place(const void* body, size_t bytes, const std::vector<uint32_t>& segments,
                                   uint64_t run_bytes) const {
  const PlaceBody request = read_place(body, bytes);
  std::vector<uint32_t> out(request.count, wire::kNoSegment);
  size_t turn = 0;
  uint64_t run = 0;
  {
    const MutexLock lock(mutex_);
    probe(request.fingerprints, request.count, [&](uint32_t i, const Location* served) {
      mutex_.assert_held();
      const Location* found = first_vouched(served);
      if (found != nullptr) {
        out[i] = found->length == u32_at(request.lengths, i) ? wire::kAlreadyThere : wire::kOtherLength;
        return;
      }
      if (segments.empty()) return;
      if (run >= run_bytes && run > 0) turn = (turn + 1) % segments.size(), run = 0;
      out[i] = segments[turn];
      run += u32_at(request.lengths, i);
    });
  }
  wire::Writer reply(8 + out.size() * 4);
  reply.u32(request.count).u32(0).raw(out.data(), out.size() * 4);
  return reply;
}

DirectoryIndex::CopiesPlaced DirectoryIndex::place_copies(const void* body, size_t bytes, uint32_t replicas,
                                                          const std::vector<std::vector<uint32_t>>& stripes,
                                                          uint64_t run_bytes) const {
  const PlaceBody request = read_place(body, bytes);
  if (replicas < 2 || replicas > kReplicasMax)
    throw wire::WireError(wire::Status::kBadRequest,
                          "replicas is " + std::to_string(replicas) + ", must be 2 to 4");
  CopiesPlaced placed;
  std::vector<uint32_t> out(size_t{request.count} * replicas, wire::kNoSegment);
  size_t turn = 0;
  uint64_t run = 0;
  {
    const MutexLock lock(mutex_);
    probe(request.fingerprints, request.count, [&](uint32_t i, const Location* served) {
      mutex_.assert_held();
      const uint32_t length = u32_at(request.lengths, i);
      const Location* const found = first_vouched(served);
      if (found != nullptr && found->length != length) {
        out[i] = wire::kOtherLength;
        return;
      }
      uint32_t taken[2 * kReplicasMax];
      uint32_t count = found == nullptr ? 0 : vouched_holders(found, taken);
      uint32_t named = 0;
      if (count > 0) out[i] = wire::kAlreadyThere, named = 1;
      if (count >= replicas) return;
      const auto there = [&](uint32_t segment) {
        return std::find(taken, taken + count, segment) != taken + count;
      };
      const auto beside = [&](uint32_t segment) {
        return std::any_of(taken, taken + count, [&](uint32_t other) {
          mutex_.assert_held();
          return share_host(segment, other);
        });
      };
      const auto take = [&](uint32_t segment) {
        out[size_t{named++} * request.count + i] = segment;
        taken[count++] = segment;
      };
      if (!stripes.empty()) {
        if (run >= run_bytes && run > 0) turn = (turn + 1) % stripes.size(), run = 0;
        run += length;
        for (const uint32_t segment : stripes[turn])
          if (count < replicas && !there(segment) && !beside(segment)) take(segment);
        for (const uint32_t segment : stripes[turn])
          if (count < replicas && !there(segment)) take(segment), ++placed.beside;
      }
      if (count > 0) placed.short_of += replicas - count;
    });
  }
  placed.reply = wire::Writer(16 + out.size() * 4);
  placed.reply.u32(request.count).u32(0).raw(out.data(), size_t{request.count} * 4);
  placed.reply.u32(replicas).u32(0);
  placed.reply.raw(out.data() + request.count, (out.size() - request.count) * 4);
  return placed;
}

DirectoryIndex::Usage DirectoryIndex::place_demand(const void* body, size_t bytes, uint32_t replicas) const {
  const PlaceBody request = read_place(body, bytes);
  Usage demand;
  const MutexLock lock(mutex_);
  probe(request.fingerprints, request.count, [&](uint32_t i, const Location* served) {
    mutex_.assert_held();
    const Location* const found = first_vouched(served);
    uint32_t holders[kReplicasMax];
    const uint32_t there = found == nullptr ? 0 : replicas == 1 ? 1 : vouched_holders(found, holders);
    if (there >= replicas || (found != nullptr && found->length != u32_at(request.lengths, i))) return;
    demand.entries += replicas - there;
    demand.bytes += uint64_t{u32_at(request.lengths, i)} * (replicas - there);
  });
  return demand;
}

std::pair<NamespaceId, std::vector<uint32_t>> DirectoryIndex::vouched_holders(const Fingerprint& f) const {
  const uint32_t tag = tag_of(f);
  const MutexLock lock(mutex_);
  const Location* const first = first_vouched(first_serving(table_.find(tag, f, locations_).head));
  if (first == nullptr) return {};
  uint32_t holders[kReplicasMax];
  const uint32_t count = vouched_holders(first, holders);
  return {namespaces_.id(first->ns), std::vector<uint32_t>(holders, holders + count)};
}

std::optional<DirectoryIndex::Found> DirectoryIndex::find(const Fingerprint& f) const {
  const uint32_t tag = tag_of(f);
  const MutexLock lock(mutex_);
  uint32_t i = table_.find(tag, f, locations_).head;
  if (i == kNoLocation) return std::nullopt;
  Found found;
  found.length = locations_[i].length;
  for (; i != kNoLocation; i = locations_[i].chain_next) found.segments.push_back(locations_[i].segment);
  return found;
}

}  // namespace kvstore
