// Room for objects: chunks of slot headers that come and go, eviction in the order of the policy, and windows.
#include <algorithm>
#include <exception>

#include "segment/object_table.hpp"

namespace kvstore {
namespace {

// Slots have 32-bit numbers on the wire: headers lie below this place in the map.
constexpr uint64_t kHeadersEnd = uint64_t{kNoSlot} * sizeof(SlotHeader);
constexpr uint32_t kSearchSteps = 1024;  // objects looked at in one piece of a search
constexpr uint64_t kSearchRegions = 64;  // and regions
constexpr uint32_t kSearchedMin = 2048;  // objects that a search looks at before it is content
// ... with a window that would leave pages without what they hang on.
constexpr uint32_t kSearchedForWhole = 8 * kSearchedMin;

}  // namespace

// ---- chunks of slot headers

void ObjectTable::track_chunk(uint32_t chunk) {
  const uint32_t places = slots_.places(chunk);
  try {
    records_.add(chunk, places);
    shards_.add_chunk(chunk, places);
    addresses_.add_chunk(chunk, places);
    namespaces_.add_chunk(chunk, places);
    chains_.add_chunk(chunk, places);
    if (free_slots_.size() <= chunk) free_slots_.resize(chunk + 1);
    policy_->grow(slots_end());
  } catch (...) {
    chains_.remove_chunk(chunk);
    namespaces_.remove_chunk(chunk);
    addresses_.remove_chunk(chunk);
    shards_.remove_chunk(chunk);
    records_.remove(chunk);
    throw;
  }
  slot_count_ += places - 1;
}

bool ObjectTable::grow() {
  const uint64_t end = data_offset_ < kHeadersEnd ? kHeadersEnd - data_offset_ : 0;
  const auto extent = extents_.allocate_low(chunk_bytes_, sizeof(SlotHeader), end);
  if (!extent) return false;
  uint32_t chunk = kChunksMax;
  try {
    chunk_extents_.insert({*extent, chunk_bytes_});
    chunk = slots_.add_chunk(data_offset_ + *extent, chunk_bytes_);
    if (chunk != kChunksMax) track_chunk(chunk);
  } catch (const std::exception&) {
    if (chunk != kChunksMax) slots_.remove_chunk(chunk);
    chunk = kChunksMax;
  }
  if (chunk == kChunksMax) {
    chunk_extents_.erase({*extent, chunk_bytes_});
    free_extent(*extent, chunk_bytes_);
    return false;
  }
  for (uint32_t place = slots_.places(chunk); --place > 0;) give_slot(slot_at(chunk, place));
  return true;
}

uint32_t ObjectTable::take_slot() noexcept {
  const uint32_t chunk = *chunks_with_free_slots_.begin();
  FreeSlots& free = free_slots_[chunk];
  const uint32_t slot = slot_at(chunk, free.first);
  free.first = records_[slot].next_free;
  --slots_free_;
  if (--free.count == 0) chunks_with_free_slots_.erase(chunk);
  return slot;
}

void ObjectTable::give_slot(uint32_t slot) noexcept {
  const uint32_t chunk = chunk_of(slot);
  FreeSlots& free = free_slots_[chunk];
  if (free.count == 0) {
    try {
      chunks_with_free_slots_.insert(chunk);
    } catch (const std::exception&) {  // out of memory: the slot is lost
      ++misuse_count_;
      return;
    }
  }
  ObjectRecord& record = records_[slot];
  record = ObjectRecord{};
  record.next_free = free.first;
  free.first = place_of(slot);
  ++free.count;
  ++slots_free_;
  // Half a chunk stays at hand, so that one that was given back is not made again at once.
  if (chunk != 0 && free.count == slots_.places(chunk) - 1 && slots_free_ - free.count >= free.count / 2)
    give_chunk_back(chunk);
}

void ObjectTable::give_chunk_back(uint32_t chunk) noexcept {
  const uint64_t offset = slots_.chunk_offset(chunk) - data_offset_;
  const uint64_t bytes = uint64_t{slots_.places(chunk)} * sizeof(SlotHeader);
  slots_free_ -= free_slots_[chunk].count;
  slot_count_ -= slots_.places(chunk) - 1;
  chunks_with_free_slots_.erase(chunk);
  free_slots_[chunk] = FreeSlots{};
  slots_.remove_chunk(chunk);
  chains_.remove_chunk(chunk);
  namespaces_.remove_chunk(chunk);
  addresses_.remove_chunk(chunk);
  shards_.remove_chunk(chunk);
  records_.remove(chunk);
  chunk_extents_.erase({offset, bytes});
  free_extent(offset, bytes);
}

// ---- eviction

ObjectTable::Evicted ObjectTable::evict(uint64_t wanted_bytes, uint32_t steps_max, uint64_t now_ms,
                                        uint32_t own_batch, uint64_t seq,
                                        std::vector<JournalEntry>& removed) noexcept {
  retention_.expire(now_ms, steps_max);
  Evicted result;
  const size_t removed_before = removed.size();
  const auto next_seq = [&] { return seq + (removed.size() - removed_before); };
  const uint64_t used_before = used_bytes();
  const auto freed = [&] { return used_before - std::min(used_before, used_bytes()); };
  while (result.looked_at < steps_max && freed() < wanted_bytes) {
    try {  // before anything is removed: what is removed has to be reported
      if (removed.size() == removed.capacity()) removed.reserve(std::max<size_t>(16, 2 * removed.size()));
    } catch (const std::exception&) {
      break;
    }
    ++result.looked_at;
    // Nobody can find an object of a retired namespace, so its pins promise nothing, and a reader only delays
    // its memory.
    const uint32_t retired = namespaces_.retired_slot();
    if (retired != kNoSlot) {
      removed.push_back(remove(retired, next_seq()));
      continue;
    }
    const uint32_t victim = policy_->coldest();
    if (victim == kNoSlot) {
      result.exhausted = true;
      break;
    }
    if (is_spared(victim)) {
      result.spared += records_[victim].batch != own_batch;
      policy_->on_spare(victim);
    } else if (!shards_.take_out_idle(victim, now_ms)) {
      ++result.blocked;
      policy_->on_spare(victim);
    } else {
      policy_->on_evict(victim);
      removed.push_back(take_out(victim, true, next_seq()));
    }
  }
  result.freed_bytes = freed();
  return result;
}

void ObjectTable::drain_chunk(uint64_t now_ms, uint64_t seq, std::vector<JournalEntry>& removed) noexcept {
  const uint64_t chunk_slots = chunk_bytes_ / sizeof(SlotHeader);
  if (slots_free_ < 2 * chunk_slots || slots_.chunks_end() < 2) return;
  drain_hand_ = drain_hand_ % (slots_.chunks_end() - 1) + 1;  // never the first one
  const uint32_t chunk = drain_hand_;
  if (!slots_.has_chunk(chunk)) return;
  const uint32_t places = slots_.places(chunk);
  uint64_t bytes = 0;
  std::vector<uint32_t> slots;
  WindowLoss loss;
  try {
    for (uint32_t place = 1; place < places; ++place) {
      const uint32_t slot = slot_at(chunk, place);
      if (records_[slot].state == SlotState::kFree) continue;
      bytes += ExtentAllocator::rounded(records_[slot].stored_bytes());
      const bool may_go = is_findable(slot) && !is_spared(slot) && records_[slot].keep != Keep::kRetained;
      if (!may_go || bytes > chunk_bytes_ / 2) return;
      slots.push_back(slot);
      loss.add(loss_of(slot));
    }
    removed.reserve(removed.size() + slots.size());
  } catch (const std::exception&) {
    return;
  }
  if (loss.sum().heads > 0) return;  // pages elsewhere hang on them
  for (const uint32_t slot : slots) {
    if (!shards_.take_out_idle(slot, now_ms)) return;
    policy_->on_evict(slot);
    removed.push_back(take_out(slot, true, seq++));
  }
}

// ---- windows

// What is lost with an object: its bytes, the more the later they were used.
WindowLoss::Object ObjectTable::loss_of(uint32_t slot) const {
  const ObjectRecord& record = records_[slot];
  WindowLoss::Object lost;
  lost.slot = slot;
  lost.parent = chains_.parent(slot);
  if (namespaces_.is_retired(record.ns)) return lost;
  lost.children = chains_.children(slot);
  lost.is_retained = record.keep == Keep::kRetained;
  const double count = ranked_count_, age = uses_ - record.used_at;
  const double weight = record.keep == Keep::kDemoted ? 0.1 : 1;
  lost.cost = static_cast<double>(record.stored_bytes()) * weight * (1 + 15 * count / (count + 8 * age));
  return lost;
}

std::vector<ObjectTable::WindowSearch::Element> ObjectTable::elements_of(uint64_t region,
                                                                         WindowSearch& search,
                                                                         uint64_t now_ms) const {
  std::vector<WindowSearch::Element> elements;
  addresses_.for_each(region, [&](uint32_t slot) {
    const ObjectRecord& record = records_[slot];
    const uint64_t offset = record.offset - data_offset_;
    const bool wanted = is_findable(slot) && !is_spared(slot);
    const bool may_go = wanted && shards_.is_idle(slot, now_ms);
    search.blocked += wanted && !may_go;
    elements.push_back({offset, offset + ExtentAllocator::rounded(record.stored_bytes()),
                        may_go ? loss_of(slot) : WindowLoss::Object{}, may_go});
  });
  const uint64_t begin = region * AddressMap::kRegionBytes;
  auto chunk = chunk_extents_.lower_bound({begin, 0});
  if (chunk != chunk_extents_.begin()) --chunk;
  for (; chunk != chunk_extents_.end() && chunk->first < begin + AddressMap::kRegionBytes; ++chunk)
    if (chunk->first + chunk->second > begin)
      elements.push_back({chunk->first, chunk->first + chunk->second, {}, false});
  std::sort(elements.begin(), elements.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return elements;
}

namespace {

using Search = ObjectTable::WindowSearch;

void begin_at(Search& s, uint64_t begin) {
  s.elements.clear();
  s.first = s.next = 0;
  s.loss = WindowLoss();
  s.lost_bytes = 0;
  s.begin = begin;
}

// Looks at the windows that end at or below `frontier`, up to where everything is known.
void look(Search& s, uint64_t frontier) {
  while (s.begin + s.size_bytes <= frontier) {
    for (; s.next < s.elements.size() && s.elements[s.next].offset < s.begin + s.size_bytes; ++s.next) {
      s.loss.add(s.elements[s.next].object);
      s.lost_bytes += s.elements[s.next].end - s.elements[s.next].offset;
    }
    const size_t count = s.next - s.first;
    const bool wasteful = s.lost_bytes > 2 * s.size_bytes && count > 1;
    if (!wasteful && (!s.best || s.loss.sum() < s.best_loss)) {
      s.best = ObjectTable::Window{s.begin, s.begin + s.size_bytes, s.begin};
      s.best_loss = s.loss.sum();
      s.best_elements = count;
    }
    if (count == 0) return;  // it is free, and so is what follows
    s.begin = s.elements[s.first].end;
    s.loss.take_out(s.elements[s.first].object);
    s.lost_bytes -= s.elements[s.first].end - s.elements[s.first].offset;
    ++s.first;
  }
  if (s.first > kSearchSteps && s.first > s.elements.size() / 2) {
    s.elements.erase(s.elements.begin(), s.elements.begin() + static_cast<ptrdiff_t>(s.first));
    s.next -= s.first;
    s.first = 0;
  }
}

}  // namespace

bool ObjectTable::search_window(WindowSearch& s, uint64_t now_ms) {
  const uint64_t count = addresses_.region_count();
  if (s.regions_left == UINT64_MAX) {
    s.size_bytes = ExtentAllocator::rounded(s.size_bytes);
    s.region = window_hand_ % count;
    // Once around, and as far again as a window reaches that begins before the hand.
    s.regions_left = count + s.size_bytes / AddressMap::kRegionBytes + 2;
    begin_at(s, s.region * AddressMap::kRegionBytes);
  }
  const uint32_t looked_before = s.looked_at;
  for (uint64_t regions = 0; regions < kSearchRegions && s.looked_at - looked_before < kSearchSteps;
       ++regions) {
    const uint32_t content = s.best && s.best_loss.heads > 0 ? kSearchedForWhole : kSearchedMin;
    if (s.regions_left == 0 || (s.best && s.looked_at >= std::max<size_t>(content, 4 * s.best_elements))) {
      window_hand_ = s.region;
      return true;
    }
    if (s.region == count) {  // nothing lies over the end
      s.region = 0;
      begin_at(s, 0);
    }
    const uint64_t region_begin = s.region * AddressMap::kRegionBytes;
    for (const WindowSearch::Element& e : elements_of(s.region, s, now_ms)) {
      if (e.offset < region_begin && !s.elements.empty() && s.elements.back().end == e.end)
        continue;  // known
      ++s.looked_at;
      if (e.offset < s.begin || !e.may_go) {
        look(s, e.offset);
        if (e.end > s.begin) begin_at(s, e.end);
      } else {
        s.elements.push_back(e);
      }
    }
    look(s, std::min(region_begin + AddressMap::kRegionBytes, capacity_bytes()));
    ++s.region;
    --s.regions_left;
  }
  return false;
}

ObjectTable::Cleared ObjectTable::clear_window(Window& w, uint64_t now_ms, uint64_t seq,
                                               std::vector<JournalEntry>& removed) noexcept {
  seq -= removed.size();
  const uint64_t region = w.cleared / AddressMap::kRegionBytes;
  uint64_t stop = std::min(w.end, (region + 1) * AddressMap::kRegionBytes);
  try {
    std::vector<uint32_t> slots;
    addresses_.for_each(region, [&](uint32_t slot) {
      const uint64_t offset = records_[slot].offset - data_offset_;
      const uint64_t end = offset + ExtentAllocator::rounded(records_[slot].stored_bytes());
      if (end <= w.cleared || offset >= w.end) return;
      slots.push_back(slot);
      stop = std::max(stop, std::min(end, w.end));
    });
    removed.reserve(removed.size() + slots.size());
    for (const uint32_t slot : slots) {
      if (!is_findable(slot) || is_spared(slot) || !shards_.take_out_idle(slot, now_ms)) {
        give_up(w);
        return Cleared::kLost;
      }
      policy_->on_evict(slot);
      removed.push_back(take_out(slot, true, seq + removed.size()));
    }
    if (!extents_.take(w.cleared, stop - w.cleared)) {
      give_up(w);
      return Cleared::kLost;
    }
  } catch (const std::exception&) {  // out of memory
    give_up(w);
    return Cleared::kLost;
  }
  w.cleared = stop;
  if (w.cleared < w.end) return Cleared::kMore;
  give_up(w);
  return Cleared::kDone;
}

void ObjectTable::give_up(Window& w) noexcept {
  if (w.cleared > w.begin) free_extent(w.begin, w.cleared - w.begin);
  w.cleared = w.begin;
}

}  // namespace kvstore
