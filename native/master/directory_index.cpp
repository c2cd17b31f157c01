#include "master/directory_index.hpp"

#include <algorithm>
#include <cassert>
#include <string>

namespace kvstore {
namespace {

constexpr size_t kInitialSlots = 1024;
constexpr uint32_t kProbeBlock = 32;  // fingerprints whose cache misses overlap
constexpr uint8_t kOpAdd = 1;
constexpr uint8_t kOpRemove = 2;

using wire::u32_at;

void check_count(uint32_t count) {
  if (count > wire::kEntriesMax)
    throw wire::WireError(wire::Status::kTooLarge, std::to_string(count) + " entries is over the cap of " +
                                                       std::to_string(wire::kEntriesMax) +
                                                       " a request: send fewer in each");
}

void check_length(uint32_t length) {
  if (length > wire::kObjectBytesMax)
    throw wire::WireError(wire::Status::kTooLarge, "an object of " + std::to_string(length) +
                                                       " bytes is over the cap of " +
                                                       std::to_string(wire::kObjectBytesMax));
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
  for (uint32_t i = 0; i < place.count; ++i) check_length(u32_at(place.lengths, i));
  return place;
}

}  // namespace

DirectoryIndex::DirectoryIndex() : slots_(kInitialSlots, Slot{0, kNil}), mask_(kInitialSlots - 1) {}

Fingerprint DirectoryIndex::fingerprint_at(const uint8_t* fingerprints, size_t i) {
  Fingerprint f;
  std::memcpy(&f.lo, fingerprints + i * kFingerprintBytes, 8);
  std::memcpy(&f.hi, fingerprints + i * kFingerprintBytes + 8, 8);
  return f;
}

// ---- memory
// ------------------------------------------------------------------------------------------------------

DirectoryIndex::Segment& DirectoryIndex::segment_at(uint32_t segment) {
  if (segment >= kSegmentsMax)
    throw wire::WireError(wire::Status::kTooLarge, "segment index " + std::to_string(segment) +
                                                       " is over the cap of " + std::to_string(kSegmentsMax));
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  return segments_[segment];
}

uint32_t DirectoryIndex::namespace_index(const NamespaceId& ns) {
  const auto found = namespace_of_.find(ns);
  if (found != namespace_of_.end()) return found->second;
  uint32_t index;
  if (free_namespaces_.empty()) {
    index = static_cast<uint32_t>(namespaces_.size());
    namespaces_.emplace_back();
    free_namespaces_.reserve(namespaces_.size());  // so that releasing one can't fail
  } else {
    index = free_namespaces_.back();
    free_namespaces_.pop_back();
  }
  namespaces_[index].id = ns;
  namespaces_[index].usage = {};
  namespace_of_.emplace(ns, index);
  return index;
}

void DirectoryIndex::release_namespace(uint32_t index) {
  if (namespaces_[index].usage.entries != 0) return;
  namespace_of_.erase(namespaces_[index].id);
  free_namespaces_.push_back(index);
}

void DirectoryIndex::reserve(uint64_t more_nodes) {
  const uint64_t distinct = used_slots_ + more_nodes;
  if (node_count_ + more_nodes >= kNil) throw std::bad_alloc();
  size_t capacity = slots_.size();
  while (distinct * 10 > capacity * uint64_t{7}) capacity *= 2;  // load at most 0.7
  if (capacity != slots_.size()) grow_table(capacity);
  while (free_nodes_ < more_nodes) {
    const auto base = static_cast<uint32_t>(chunks_.size() << kChunkBits);
    chunks_.push_back(std::make_unique<Node[]>(kChunkNodes));
    for (uint32_t i = kChunkNodes; i-- > 0;) {  // hand out ascending indexes
      chunks_.back()[i].chain_next = free_head_;
      free_head_ = base + i;
    }
    free_nodes_ += kChunkNodes;
  }
}

void DirectoryIndex::grow_table(size_t capacity) {
  std::vector<Slot> bigger(capacity, Slot{0, kNil});
  const size_t mask = capacity - 1;
  for (const Slot& slot : slots_) {
    if (slot.head == kNil) continue;
    size_t i = slot.tag & mask;
    while (bigger[i].head != kNil) i = (i + 1) & mask;
    bigger[i] = slot;
  }
  slots_.swap(bigger);
  mask_ = mask;
}

// ---- table
// -------------------------------------------------------------------------------------------------------

size_t DirectoryIndex::find_slot(const Fingerprint& f, uint32_t tag) const {
  size_t i = tag & mask_;
  while (slots_[i].head != kNil && !(slots_[i].tag == tag && node(slots_[i].head).fingerprint == f))
    i = (i + 1) & mask_;
  return i;
}

void DirectoryIndex::erase_slot(size_t hole) {
  for (size_t i = (hole + 1) & mask_; slots_[i].head != kNil; i = (i + 1) & mask_) {
    const size_t home = slots_[i].tag & mask_;
    // An entry may move back to the hole unless its home lies after it.
    if (((i - home) & mask_) >= ((i - hole) & mask_)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole].head = kNil;
  --used_slots_;
}

void DirectoryIndex::account(uint32_t segment, uint32_t ns, uint32_t length, bool plus) {
  for (Usage* usage : {&segments_[segment].usage, &namespaces_[ns].usage}) {
    assert(plus || (usage->entries > 0 && usage->bytes >= length));
    usage->entries += plus ? 1 : uint64_t(-1);
    usage->bytes += plus ? uint64_t{length} : uint64_t{0} - length;
  }
}

bool DirectoryIndex::add(uint32_t segment, uint32_t ns, const Fingerprint& f, uint32_t length) {
  const uint32_t tag = tag_of(f);
  const size_t slot = find_slot(f, tag);
  Segment& owner = segments_[segment];
  for (uint32_t i = slots_[slot].head; i != kNil; i = node(i).chain_next) {
    Node& n = node(i);
    if (n.segment != segment) continue;
    const uint32_t old_ns = n.ns_mark & ~kMarkBit;
    account(segment, old_ns, n.length, false);
    n.length = length;
    n.ns_mark = ns | owner.mark;
    account(segment, ns, length, true);
    if (old_ns != ns) release_namespace(old_ns);
    return false;
  }
  assert(free_head_ != kNil && "reserve() came first");
  const uint32_t fresh = free_head_;
  Node& n = node(fresh);
  free_head_ = n.chain_next;
  --free_nodes_;
  ++node_count_;
  n = Node{f, segment, length, ns | owner.mark, slots_[slot].head, kNil, owner.head};
  if (owner.head != kNil) node(owner.head).segment_prev = fresh;
  owner.head = fresh;
  if (slots_[slot].head == kNil) ++used_slots_;
  slots_[slot] = Slot{tag, fresh};
  account(segment, ns, length, true);
  return true;
}

bool DirectoryIndex::remove(uint32_t segment, const Fingerprint& f) {
  const size_t slot = find_slot(f, tag_of(f));
  uint32_t before = kNil;
  for (uint32_t i = slots_[slot].head; i != kNil; before = i, i = node(i).chain_next) {
    if (node(i).segment != segment) continue;
    unlink(slot, before, i);
    return true;
  }
  return false;
}

void DirectoryIndex::unlink(size_t slot, uint32_t before, uint32_t target) {
  Node& n = node(target);
  Segment& owner = segments_[n.segment];
  if (n.segment_prev != kNil)
    node(n.segment_prev).segment_next = n.segment_next;
  else
    owner.head = n.segment_next;
  if (n.segment_next != kNil) node(n.segment_next).segment_prev = n.segment_prev;

  const uint32_t ns = n.ns_mark & ~kMarkBit;
  account(n.segment, ns, n.length, false);
  release_namespace(ns);

  if (before != kNil)
    node(before).chain_next = n.chain_next;
  else if (n.chain_next != kNil)
    slots_[slot].head = n.chain_next;
  else
    erase_slot(slot);
  n.chain_next = free_head_;
  free_head_ = target;
  ++free_nodes_;
  --node_count_;
}

void DirectoryIndex::remove_node(uint32_t target) {
  const Fingerprint f = node(target).fingerprint;
  const size_t slot = find_slot(f, tag_of(f));
  uint32_t before = kNil;
  for (uint32_t i = slots_[slot].head; i != target; i = node(i).chain_next) before = i;
  unlink(slot, before, target);
}

// ---- changes
// -----------------------------------------------------------------------------------------------------

std::vector<DirectoryIndex::Group> DirectoryIndex::parse_groups(const void* groups, size_t bytes) {
  std::vector<Group> parsed;
  wire::Reader reader(groups, bytes);
  uint64_t total = 0;
  while (reader.left() > 0) {
    Group group;
    const uint8_t op = reader.u8("op");
    if (op != kOpAdd && op != kOpRemove)
      throw wire::WireError(wire::Status::kBadRequest,
                            "journal op " + std::to_string(op) + " is neither ADD nor REMOVE");
    group.add = op == kOpAdd;
    reader.bytes(3, "reserved");
    group.count = reader.u32("count");
    total += group.count;
    if (total > wire::kEntriesMax)
      throw wire::WireError(wire::Status::kTooLarge, "a journal batch holds at most " +
                                                         std::to_string(wire::kEntriesMax) + " entries");
    std::memcpy(group.ns.data(), reader.bytes(kNamespaceBytes, "namespace"), kNamespaceBytes);
    group.fingerprints = reader.bytes(size_t{group.count} * kFingerprintBytes, "fingerprints");
    group.lengths = reader.bytes(size_t{group.count} * 4, "lengths");
    if (group.add)
      for (uint32_t i = 0; i < group.count; ++i) check_length(u32_at(group.lengths, i));
    parsed.push_back(group);
  }
  return parsed;
}

uint64_t DirectoryIndex::check(const void* groups, size_t bytes) {
  uint64_t entries = 0;
  for (const Group& group : parse_groups(groups, bytes)) entries += group.count;
  return entries;
}

void DirectoryIndex::prefetch_node(uint32_t tag) const {
  const uint32_t head = slots_[tag & mask_].head;
  if (head != kNil) __builtin_prefetch(&node(head));
}

DirectoryIndex::Applied DirectoryIndex::apply(uint32_t segment, const void* groups, size_t bytes) {
  const std::vector<Group> parsed = parse_groups(groups, bytes);
  uint64_t adds = 0;
  for (const Group& group : parsed) adds += group.add ? group.count : 0;

  const MutexLock lock(mutex_);
  // Whatever can fail comes before the first change.
  segment_at(segment);
  reserve(adds);

  Applied applied;
  for (const Group& group : parsed) {
    if (group.count == 0) continue;
    const uint32_t ns = group.add ? namespace_index(group.ns) : 0;
    for (uint32_t i = 0; i < group.count; ++i) {
      if (i + 2 * 8 < group.count) prefetch_slot(tag_of(fingerprint_at(group.fingerprints, i + 2 * 8)));
      if (i + 8 < group.count) prefetch_node(tag_of(fingerprint_at(group.fingerprints, i + 8)));
      const Fingerprint f = fingerprint_at(group.fingerprints, i);
      if (group.add)
        applied.added += add(segment, ns, f, u32_at(group.lengths, i)) ? 1 : 0;
      else
        applied.removed += remove(segment, f) ? 1 : 0;
    }
  }
  return applied;
}

uint64_t DirectoryIndex::drop_segment(uint32_t segment, uint64_t entries_max) {
  const MutexLock lock(mutex_);
  const Segment& owner = segment_at(segment);
  uint64_t dropped = 0;
  for (; owner.head != kNil && dropped < entries_max; ++dropped) remove_node(owner.head);
  return dropped;
}

void DirectoryIndex::begin_inventory(uint32_t segment) {
  const MutexLock lock(mutex_);
  // Entries that an abandoned inventory marked must start unmarked again, so give all of them the mark of
  // now.
  Segment& owner = segment_at(segment);
  for (uint32_t i = owner.head; i != kNil; i = node(i).segment_next)
    node(i).ns_mark = (node(i).ns_mark & ~kMarkBit) | owner.mark;
  owner.mark ^= kMarkBit;
}

uint64_t DirectoryIndex::end_inventory(uint32_t segment) {
  const MutexLock lock(mutex_);
  Segment& owner = segment_at(segment);
  uint64_t dropped = 0;
  for (uint32_t i = owner.head; i != kNil;) {
    const uint32_t next = node(i).segment_next;
    if ((node(i).ns_mark & kMarkBit) != owner.mark) remove_node(i), ++dropped;
    i = next;
  }
  return dropped;
}

void DirectoryIndex::set_serving(uint32_t segment, bool serving) {
  const MutexLock lock(mutex_);
  segment_at(segment).serving = serving;
}

// ---- queries
// -----------------------------------------------------------------------------------------------------

const DirectoryIndex::Node* DirectoryIndex::first_serving(size_t slot) const {
  for (uint32_t i = slots_[slot].head; i != kNil; i = node(i).chain_next)
    if (segments_[node(i).segment].serving) return &node(i);
  return nullptr;
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
      prefetch_slot(tags[i]);
    }
    for (uint32_t i = 0; i < n; ++i) prefetch_node(tags[i]);
    for (uint32_t i = 0; i < n; ++i) visit(start + i, first_serving(find_slot(block[i], tags[i])));
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
  probe(fingerprints, count, [&](uint32_t i, const Node* found) {
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

  std::vector<uint32_t> out(size_t{count} * (replicas + size_t{1}), kNil);
  uint32_t* lengths = out.data() + size_t{count} * replicas;
  const MutexLock lock(mutex_);
  probe(fingerprints, count, [&](uint32_t i, const Node* found) {
    mutex_.assert_held();
    if (found == nullptr) {
      lengths[i] = 0;
      return;
    }
    lengths[i] = found->length;
    uint32_t filled = 0;
    // Holders that disagree on the length can't hold the same object: the reader gets those that agree with
    // the first.
    for (const Node* n = found; filled < replicas; n = &node(n->chain_next)) {
      if (n->length == found->length && segments_[n->segment].serving)
        out[size_t{filled++} * count + i] = n->segment;
      if (n->chain_next == kNil) break;
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
    probe(request.fingerprints, request.count, [&](uint32_t i, const Node* found) {
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

DirectoryIndex::Usage DirectoryIndex::place_demand(const void* body, size_t bytes) const {
  const PlaceBody request = read_place(body, bytes);
  Usage demand;
  const MutexLock lock(mutex_);
  probe(request.fingerprints, request.count, [&](uint32_t i, const Node* found) {
    if (found != nullptr) return;
    ++demand.entries;
    demand.bytes += u32_at(request.lengths, i);
  });
  return demand;
}

std::vector<wire::Writer> DirectoryIndex::snapshot(uint32_t segment, uint32_t entries_max) const {
  if (entries_max == 0 || entries_max > wire::kEntriesMax)
    throw wire::WireError(wire::Status::kBadRequest,
                          "entries_max must be 1 to " + std::to_string(wire::kEntriesMax));
  std::vector<wire::Writer> chunks;
  std::vector<const Node*> entries;
  const MutexLock lock(mutex_);
  if (segment >= segments_.size()) return chunks;
  const auto flush = [&] {
    mutex_.assert_held();
    const auto ns_of = [](const Node* n) { return n->ns_mark & ~kMarkBit; };
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const Node* a, const Node* b) { return ns_of(a) < ns_of(b); });
    wire::Writer chunk(entries.size() * (kFingerprintBytes + 4) + 64);
    for (size_t from = 0, to; from < entries.size(); from = to) {
      for (to = from; to < entries.size() && ns_of(entries[to]) == ns_of(entries[from]);) ++to;
      chunk.u8(kOpAdd).zeros(3).u32(static_cast<uint32_t>(to - from));
      chunk.raw(namespaces_[ns_of(entries[from])].id.data(), kNamespaceBytes);
      for (size_t i = from; i < to; ++i)
        chunk.u64(entries[i]->fingerprint.lo).u64(entries[i]->fingerprint.hi);
      for (size_t i = from; i < to; ++i) chunk.u32(entries[i]->length);
    }
    chunks.push_back(std::move(chunk));
    entries.clear();
  };
  for (uint32_t i = segments_[segment].head; i != kNil; i = node(i).segment_next) {
    entries.push_back(&node(i));
    if (entries.size() == entries_max) flush();
  }
  if (!entries.empty()) flush();
  return chunks;
}

DirectoryIndex::Usage DirectoryIndex::segment_usage(uint32_t segment) const {
  const MutexLock lock(mutex_);
  return segment < segments_.size() ? segments_[segment].usage : Usage{};
}

std::vector<std::pair<NamespaceId, DirectoryIndex::Usage>> DirectoryIndex::namespace_usage() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<NamespaceId, Usage>> all;
  for (const auto& [id, index] : namespace_of_) all.emplace_back(id, namespaces_[index].usage);
  return all;
}

std::optional<DirectoryIndex::Found> DirectoryIndex::find(const Fingerprint& f) const {
  const MutexLock lock(mutex_);
  uint32_t i = slots_[find_slot(f, tag_of(f))].head;
  if (i == kNil) return std::nullopt;
  Found found;
  found.length = node(i).length;
  for (; i != kNil; i = node(i).chain_next) found.segments.push_back(node(i).segment);
  return found;
}

uint64_t DirectoryIndex::entry_count() const {
  const MutexLock lock(mutex_);
  return node_count_;
}

uint64_t DirectoryIndex::memory_bytes() const {
  const MutexLock lock(mutex_);
  return slots_.capacity() * sizeof(Slot) + chunks_.size() * kChunkNodes * sizeof(Node) +
         segments_.capacity() * sizeof(Segment) + namespaces_.capacity() * sizeof(Namespace);
}

}  // namespace kvstore
