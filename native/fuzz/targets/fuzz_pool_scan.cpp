// A pool that a store has left, and damage to it: its first page, the headers of chunks and slots, the journal ring, the bytes of
// objects. The next store takes over or begins anew, serves what is whole and nothing else, and its journal tells no lie.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "fuzz.hpp"
#include "segment/journal_pump.hpp"
#include "segment/object_fixture.hpp"
#include "segment/pool_place.hpp"
#include "segment/store_journal_source.hpp"

namespace kvstore::fuzz {
namespace {

using testing::Keys;
using testing::kNs;
using testing::put_one;
using wire::Status;
using Fp = std::pair<uint64_t, uint64_t>;

// Of an input: what goes before the damage.
constexpr uint8_t kManyChunks = 9;  // both bits: the pool with more slots than the first chunk has place for
constexpr uint8_t kRepairs = 2;     // checks are made to fit what was damaged: somebody forged it
constexpr uint8_t kHasHeard = 4;  // the directory has all that was journalled, not only what was acknowledged
constexpr size_t kDamagesMax = 32;

// How the first page and the ring lie in the file, as superblock.cpp and journal_ring.cpp write them. A seed without damage that is
// not taken over shows that they have changed.
constexpr size_t kDeviceAt = 64, kInodeAt = 72, kCheckAt = 136, kClusterCheckAt = 140, kClusterAt = 144;
constexpr size_t kPageUsed = 160, kStateAt = 12;
constexpr uint32_t kWhole = 0x57484F4C, kClusterSalt = 0x43495553;
constexpr uint32_t kRingStateSalt = 0x4C524A53, kRingEntrySalt = 0x4C524A52;
constexpr size_t kRingCheckAt = 28, kRingStateBytes = 64;

template <typename T>
T& at(Bytes& bytes, uint64_t offset) {
  HOLDS(offset + sizeof(T) <= bytes.size());
  return *reinterpret_cast<T*>(bytes.data() + offset);
}

// What a master keeps of one segment. It insists on a journal without holes.
struct Directory {
  std::set<Fp> objects;
  uint64_t durable_seq = 0;

  void take(const std::vector<uint8_t>& groups, uint64_t first_seq, uint64_t last_seq) {
    HOLDS(first_seq <= durable_seq + 1);
    uint64_t seq = first_seq - 1;
    wire::Reader reader(groups.data(), groups.size());
    while (reader.left() > 0) {
      const bool add = reader.u32("op") == static_cast<uint32_t>(JournalOp::kAdd);
      const uint32_t count = reader.u32("count");
      reader.bytes(kNamespaceBytes, "namespace");
      for (uint32_t i = 0; i < count; ++i) {
        Fp fp;
        fp.first = reader.u64("lo");
        fp.second = reader.u64("hi");
        if (++seq <= durable_seq) continue;
        if (add)
          objects.insert(fp);
        else
          objects.erase(fp);
      }
      reader.bytes(size_t{count} * 4, "lengths");
    }
    HOLDS(seq == last_seq);
    durable_seq = std::max(durable_seq, last_seq);
  }

  // A chunk of an inventory, which stands for the journal up to `last_seq`.
  void list(const JournalPump::Message& chunk) {
    if (chunk.first) objects.clear();
    durable_seq = 0;
    uint64_t entries = 0;
    for (size_t i = 0; i + 16 <= chunk.groups.size();) {
      const uint32_t count = wire::u32_at(chunk.groups.data() + i, 1);
      entries += count;
      i += 16 + size_t{count} * 20;
    }
    take(chunk.groups, 1, entries);
    durable_seq = chunk.last_seq;
  }
};

SegmentStoreOptions options(const std::string& path, uint64_t capacity_bytes, uint8_t pool) {
  SegmentStoreOptions o;
  o.capacity_bytes = capacity_bytes;
  o.free_ahead_bytes = 0;
  o.pool.path = path;
  o.pool_id = {pool};
  o.segment_id = {2};
  return o;
}

void put_many(SegmentStore& store, const std::string& prefix, uint32_t count) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i));
  const Keys keys(names);
  const testing::Put put(keys, 1);
  std::vector<WriteEntry> writes(count);
  store.reserve_writes(put.request(), 0, count, SegmentStore::Clock::now() + std::chrono::seconds(20),
                       testing::kNever, writes);
  for (uint32_t i = 0; i < count; ++i) {
    HOLDS(writes[i].data != nullptr);
    *writes[i].data = static_cast<uint8_t>(i);
    writes[i].digest = crc32c(0, writes[i].data, 1);
  }
  store.seal_writes(put.request(), writes);
}

// What was killed: its pool as it was found then, and what the directory had.
struct Image {
  uint64_t capacity_bytes;
  Bytes bytes;
  PoolShape shape;
  std::vector<uint64_t> chunks, slots;  // where the headers lie; of slots those that were used
  Directory acked, heard;

  explicit Image(bool many_chunks) : capacity_bytes(many_chunks ? 8u << 20 : 256u << 10) {
    const PoolPlace place;
    SegmentStore store(options(place.file("pool"), capacity_bytes, 1));
    store.set_cluster_id({5});
    if (many_chunks)
      for (uint32_t i = 0; i < 5; ++i) put_many(store, "tiny-" + std::to_string(i) + "-", 4000);
    for (uint32_t i = 0; i < 24; ++i)
      HOLDS(put_one(store, "object-" + std::to_string(i), 1 + i * 397) == Status::kOk);
    store.remove(Keys({"object-3", "object-4"}).block());
    hear(store, acked);
    store.journal().ack(acked.durable_seq);
    for (uint32_t i = 0; i < 4; ++i) put_one(store, "later-" + std::to_string(i), 100);
    HOLDS(put_one(store, "object-3", 500) == Status::kOk);  // where something else was
    const auto bad = store.acquire_reads(Keys({"object-5"}).block(), nullptr);
    const_cast<uint8_t*>(bad[0].data)[7] ^= 1;
    store.release_reads(bad);
    store.verify(Keys({"object-5"}).block());
    const auto read = store.acquire_reads(Keys({"object-6"}).block(), nullptr);
    store.remove(Keys({"object-6", "object-7"}).block());  // one of them while it is read
    const Keys unfinished({"unfinished"});
    const testing::Put put(unfinished, 700);
    std::vector<WriteEntry> writes(1);
    store.reserve_writes(put.request(), 0, 1, SegmentStore::Clock::now() + std::chrono::seconds(20),
                         testing::kNever, writes);
    heard = acked;
    hear(store, heard);
    bytes.assign(store.pool().base(), store.pool().base() + store.pool().map_bytes());
    store.abandon_writes(writes);
    store.release_reads(read);
    shape = Superblock(bytes.data()).shape();
    for (uint64_t chunk = SlotTable::kFirstChunkOffset; chunk != 0;
         chunk = at<ChunkHeader>(bytes, chunk).next) {
      chunks.push_back(chunk);
      for (uint64_t slot = chunk + 128; slot < chunk + at<ChunkHeader>(bytes, chunk).chunk_bytes; slot += 128)
        if (at<SlotHeader>(bytes, slot).offset != 0) slots.push_back(slot);
    }
    HOLDS(many_chunks == (chunks.size() > 1));
    for (const uint64_t chunk : chunks)
      slots.push_back(chunk + 128 * 300);  // and some that are free, perhaps
  }

 private:
  static void hear(SegmentStore& store, Directory& directory) {
    while (const auto batch = store.journal().drain(100'000))
      directory.take(batch->groups, batch->first_seq, batch->last_seq);
  }
};

// ---- damage

enum Place : uint8_t { kPage, kChunk, kSlot, kRingState, kRingEntry, kObject, kPlaces };

class Damager {
 public:
  Damager(const Image& image, Bytes& bytes) : image_(image), bytes_(bytes) {}

  void damage(Input& input) {
    const auto place = static_cast<Place>(input.take<uint8_t>() % kPlaces);
    const uint32_t which = input.take<uint16_t>();
    const auto field = input.take<uint8_t>();
    const auto how = input.take<uint8_t>();
    const auto value = input.take<uint64_t>();
    const uint64_t unit = unit_of(place);
    const uint64_t offset = field % unit;
    const uint64_t begin = begin_of(place, which);
    const uint64_t width = std::min<uint64_t>(uint64_t{1} << (how / 4 % 8), unit - offset);
    uint8_t* const to = bytes_.data() + begin + offset;
    switch (how % 4) {
      case 0:
        std::memcpy(to, &value, std::min<uint64_t>(width, sizeof(value)));
        break;
      case 1:
        *to ^= static_cast<uint8_t>(value | 1);
        break;
      case 2:  // as another one has it
        std::memmove(to, bytes_.data() + begin_of(place, static_cast<uint32_t>(value)) + offset, width);
        break;
      default:
        std::memset(to, static_cast<int>(value), width);
    }
    touched_.insert({place, begin});
  }

  void repair() {
    for (const auto& [place, begin] : touched_) {
      if (place == kPage) {
        at<uint32_t>(bytes_, kClusterCheckAt) = crc32c(kClusterSalt, bytes_.data() + kClusterAt, 16);
        at<uint32_t>(bytes_, kCheckAt) = page_check();
      } else if (place == kSlot) {
        auto& h = at<SlotHeader>(bytes_, begin);
        h.check = h.check_at(h.generation.load());
      } else if (place == kRingState) {
        at<uint32_t>(bytes_, begin + kRingCheckAt) =
            crc32c(kRingStateSalt, bytes_.data() + begin, kRingCheckAt) | 1u;
      } else if (place == kRingEntry) {
        const uint64_t seq = seq_of(begin);
        const uint32_t salt = crc32c(kRingEntrySalt, &seq, sizeof(seq));
        at<uint32_t>(bytes_, begin + kRingCheckAt) = crc32c(salt, bytes_.data() + begin, kRingCheckAt) | 1u;
      }
    }
  }

  // The file that it lies in now, as if it had been there all the time.
  void move_to(const struct stat& file) {
    const bool whole = at<uint32_t>(bytes_, kCheckAt) == page_check();
    const Bytes& before = image_.bytes;
    for (const auto& [where, value] :
         {std::pair(kDeviceAt, uint64_t{file.st_dev}), std::pair(kInodeAt, uint64_t{file.st_ino})})
      if (std::memcmp(bytes_.data() + where, before.data() + where, 8) == 0)
        at<uint64_t>(bytes_, where) = value;
    if (whole) at<uint32_t>(bytes_, kCheckAt) = page_check();
  }

  bool any(Place place) const {
    return std::any_of(touched_.begin(), touched_.end(),
                       [&](const auto& each) { return each.first == place; });
  }
  bool none() const { return touched_.empty(); }

  // Damage that nothing shows: what was damaged says of itself that it is whole, or that it was being changed.
  bool is_hidden() const {
    return std::any_of(touched_.begin(), touched_.end(),
                       [this](const auto& each) { return hides(each.first, each.second); });
  }
  // Of a slot: what `check` is not made over. The journal tells it for most.
  bool touched_unchecked() const {
    return std::any_of(touched_.begin(), touched_.end(), [this](const auto& each) {
      constexpr size_t kRemovedAt = offsetof(SlotHeader, removed),
                       kBytes = offsetof(SlotHeader, check) - kRemovedAt;
      return each.first == kSlot && changed(each.second + kRemovedAt, kBytes);
    });
  }

 private:
  static uint64_t unit_of(Place place) {
    constexpr uint64_t kUnits[] = {kPageUsed, 128, 128, kRingStateBytes, JournalRing::kEntryBytes, 64};
    return kUnits[place];
  }
  uint64_t begin_of(Place place, uint32_t which) const {
    const uint64_t ring = image_.shape.journal_offset;
    switch (place) {
      case kPage:
        return 0;
      case kChunk:
        return image_.chunks[which % image_.chunks.size()];
      case kSlot:
        return image_
            .slots[image_.slots.size() - 1 - which % image_.slots.size()];  // those of all kinds are the last
      case kRingState:
        return ring + which % 2 * kRingStateBytes;
      case kRingEntry: {
        const uint64_t seq = image_.heard.durable_seq + 4 - which % (image_.heard.durable_seq + 4);
        return ring + JournalRing::kStateBytes +
               seq % image_.shape.journal_entries * JournalRing::kEntryBytes;
      }
      default:
        return image_.shape.data_offset + uint64_t{which} * 64 % image_.capacity_bytes;
    }
  }
  // The number that an entry there has, or is to get.
  uint64_t seq_of(uint64_t begin) const {
    const uint64_t place =
        (begin - image_.shape.journal_offset - JournalRing::kStateBytes) / JournalRing::kEntryBytes;
    uint64_t seq = image_.heard.durable_seq + 4;
    while (seq % image_.shape.journal_entries != place) --seq;
    return seq;
  }
  uint32_t page_check() const {
    Bytes page(bytes_.begin(), bytes_.begin() + kCheckAt);
    std::memcpy(page.data() + kStateAt, &kWhole, sizeof(kWhole));
    return crc32c(0, page.data(), page.size());
  }
  bool changed(uint64_t offset, size_t size) const {
    return std::memcmp(bytes_.data() + offset, image_.bytes.data() + offset, size) != 0;
  }
  bool hides(Place place, uint64_t begin) const {
    if (!changed(begin, unit_of(place))) return false;
    if (place == kPage) return at<uint32_t>(bytes_, kCheckAt) == page_check();
    if (place == kChunk) return true;
    if (place == kSlot) {
      const auto& h = at<SlotHeader>(bytes_, begin);
      if (!changed(begin, offsetof(SlotHeader, removed))) return false;
      const uint64_t generation = h.generation.load();
      return generation % 2 != 0 || h.check == h.check_at(generation);
    }
    if (place == kObject) return false;
    uint32_t expected = crc32c(kRingStateSalt, bytes_.data() + begin, kRingCheckAt) | 1u;
    const uint32_t check = at<uint32_t>(bytes_, begin + kRingCheckAt);
    if (place == kRingState) return check == expected || check == 0;
    for (uint64_t seq = seq_of(begin), laps = 0; laps < 3; seq += image_.shape.journal_entries, ++laps) {
      expected = crc32c(crc32c(kRingEntrySalt, &seq, sizeof(seq)), bytes_.data() + begin, kRingCheckAt) | 1u;
      if (check == expected) return true;
    }
    return false;
  }

  const Image& image_;
  Bytes& bytes_;
  std::set<std::pair<Place, uint64_t>> touched_;
};

// ---- what has to hold

// What the segment's own memory says that it serves: lies where it may, has its bytes, and nothing lies on anything else.
uint64_t check_memory(const SegmentStore& store, const PoolShape& shape) {
  const uint8_t* const base = store.pool().base();
  std::map<uint64_t, uint64_t> ranges;  // begin -> end
  uint64_t objects = 0, chunks = 0;
  for (uint64_t at = SlotTable::kFirstChunkOffset; at != 0; ++chunks) {
    HOLDS(chunks < kChunksMax && SlotTable::is_chunk(base, shape.journal_offset, at));
    const auto& chunk = *reinterpret_cast<const ChunkHeader*>(base + at);
    HOLDS(ranges.emplace(at, at + chunk.chunk_bytes).second);
    for (uint64_t slot = at + 128; slot < at + chunk.chunk_bytes; slot += 128) {
      const auto& h = *reinterpret_cast<const SlotHeader*>(base + slot);
      HOLDS(h.magic == SlotHeader::kMagic && h.version == SlotHeader::kVersion &&
            h.generation.load() % 2 == 0);
      HOLDS(h.state == SlotState::kFree || h.state == SlotState::kSealed);
      if (h.state == SlotState::kFree) continue;
      ++objects;
      HOLDS(h.removed == 0 && h.offset >= shape.data_offset);
      HOLDS(h.offset + h.stored_bytes() <= shape.data_offset + shape.capacity_bytes);
      HOLDS(ranges.emplace(h.offset, h.offset + ExtentAllocator::rounded(h.stored_bytes())).second);
      HOLDS(h.digest_alg == kDigestCrc32c && crc32c(0, base + h.offset, h.length) == h.digest);
    }
    at = chunk.next;
  }
  uint64_t end = 0;
  for (const auto& [from, to] : ranges) {
    HOLDS(from >= end);
    end = to;
  }
  return objects;
}

std::set<Fp> held_by(SegmentStore& store) {
  Directory listed;
  SegmentStore::Inventory inventory = store.begin_inventory();
  for (bool done = false, first = true; !done; first = false) {
    JournalPump::Message chunk;
    chunk.first = first;
    done = store.inventory_slice(inventory, 4096, chunk.groups);
    listed.list(chunk);
  }
  return listed.objects;
}

// What a segment and its master do when it attaches.
void attach(SegmentStore& store, Directory& directory, bool same_pool) {
  Journal& journal = store.journal();
  if (!same_pool) directory = {};
  const bool need_inventory =
      journal.last_seq() < directory.durable_seq || journal.oldest_kept_seq() > directory.durable_seq + 1;
  StoreJournalSource source(std::shared_ptr<SegmentStore>(&store, [](SegmentStore*) {}));
  JournalPump pump(source);
  pump.attached(directory.durable_seq, need_inventory);
  while (const auto message = pump.next_message()) {
    if (message->kind == JournalPump::Kind::kChunk)
      directory.list(*message);
    else
      directory.take(message->groups, message->first_seq, message->last_seq);
    if (message->kind == JournalPump::Kind::kBatch || message->last) pump.acked(directory.durable_seq);
  }
}

void check_taken_over(SegmentStore& store, const Damager& damager, bool forged, Directory directory) {
  const PoolContent& content = store.pool_content();
  HOLDS(content.warm || !content.fresh_reason.empty());
  HOLDS(content.warm || !damager.none());
  const PoolShape shape = Superblock(const_cast<uint8_t*>(store.pool().base())).shape();
  HOLDS(check_memory(store, shape) == content.objects);
  store.set_namespaces(store.namespaces(), store.namespaces());
  attach(store, directory, store.pool_id() == PoolId{1});
  const std::set<Fp> held = held_by(store);
  HOLDS(held.size() == content.objects);
  if (forged || damager.is_hidden()) return;
  // Whatever the directory says is there. What it does not know of may lie there, when a number was damaged.
  HOLDS(std::includes(held.begin(), held.end(), directory.objects.begin(), directory.objects.end()));
  if (!damager.touched_unchecked()) HOLDS(held == directory.objects);
}

void check_works(SegmentStore& store) {
  HOLDS(put_one(store, "next", 3000, {9}, 10'000) == Status::kOk);
  HOLDS(testing::get_one(store, "next", {9}) == Status::kOk);
  const std::map<std::string, uint64_t> stats = store.stats();
  HOLDS(stats.at("bookkeeping_errors") == 0 && stats.at("evictor_errors") == 0);
  while (store.evict_bytes(UINT64_MAX) > 0) {
  }
  HOLDS(store.usage().object_count == 0 && store.usage().used_bytes == 0);
  HOLDS(store.stats().at("bookkeeping_errors") == 0 && store.stats().at("damaged_slots") == 0);
}

void write_file(const std::string& path, Damager& damager, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  struct stat status{};
  HOLDS(::stat(path.c_str(), &status) == 0 && ::chmod(path.c_str(), 0600) == 0);
  damager.move_to(status);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  HOLDS(file.good());
}

void damage(Bytes& to, Place place, uint16_t which, uint8_t field, uint8_t how, uint64_t value) {
  to.insert(to.end(), {place, static_cast<uint8_t>(which), static_cast<uint8_t>(which >> 8), field, how});
  for (int i = 0; i < 8; ++i) to.push_back(static_cast<uint8_t>(value >> 8 * i));
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  for (const int which :
       std::vector<int>{0, kRepairs, kHasHeard, kRepairs | kHasHeard, kManyChunks, kManyChunks | kRepairs}) {
    const auto flags = static_cast<uint8_t>(which);
    const std::string name = "flags_" + std::to_string(flags) + "_";
    seeds.push_back({name + "whole", {flags}});
    for (uint8_t place = 0; place < kPlaces; ++place) {
      Bytes few{flags};
      for (uint16_t i = 0; i < 6; ++i)
        damage(few, static_cast<Place>(place), i, static_cast<uint8_t>(16 + i * 3), i % 4, i + 1u);
      seeds.push_back({name + "place_" + std::to_string(place), few});
    }
    Bytes overlap{flags}, twice{flags};
    damage(overlap, kSlot, 6, 16, 4 * 4 + 2, 7);  // offset, length and digest of another one
    damage(twice, kSlot, 6, 0, 7 * 4 + 2, 7);     // all of it
    seeds.push_back({name + "overlap", overlap});
    seeds.push_back({name + "twice", twice});
  }
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  static const PoolPlace place;
  static const Image small(false), large(true);
  Input input(data, size);
  const uint8_t flags = input.take<uint8_t>();
  const Image& image = (flags & kManyChunks) == kManyChunks ? large : small;
  Bytes bytes = image.bytes;
  Damager damager(image, bytes);
  for (size_t i = 0; i < kDamagesMax && input.left() > 0; ++i) damager.damage(input);
  if ((flags & kRepairs) != 0) damager.repair();
  const std::string path = place.file("pool");
  write_file(path, damager, bytes);
  try {
    SegmentStore store(options(path, image.capacity_bytes, 3));
    check_taken_over(store, damager, (flags & kRepairs) != 0,
                     (flags & kHasHeard) != 0 ? image.heard : image.acked);
    check_works(store);
  } catch (const PoolRefusedError& refused) {
    HOLDS(damager.any(kPage) && refused.what()[0] != '\0');
  }
  ::unlink(path.c_str());
  return 0;
}

}  // namespace kvstore::fuzz
