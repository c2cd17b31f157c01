// The small parts of the client: location cache, registered memory, shared buffer, worker pool, segment map.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "base/worker_pool.hpp"
#include "check.hpp"
#include "client/location_cache.hpp"
#include "client/registered_memory.hpp"
#include "client/segment_map.hpp"
#include "client/shared_buffer.hpp"

using namespace kvstore;

TEST(a_location_is_found_until_it_is_forgotten) {
  LocationCache cache(64);
  const std::vector<Fingerprint> fps = {{1, 2}, {3, 4}, {5, 6}};
  std::vector<ObjectLocation> where(3);
  where[0].segments = {7, wire::kNoSegment};
  where[2].segments = {8, 9};
  cache.store(fps, {0, 2}, where);
  const auto find = [&] {
    std::vector<ObjectLocation> found(3);
    cache.find(fps, {0, 1, 2}, &found);
    return found;
  };
  CHECK(find()[0].segments[0] == 7u);
  CHECK(!find()[1].known());
  CHECK(find()[2].segments[1] == 9u);
  cache.forget(fps, {2});
  CHECK(find()[0].known());
  CHECK(!find()[2].known());
  where[2].segments = {3, wire::kNoSegment};
  cache.store(fps, {2}, where);
  cache.store(fps, {2}, where);  // no second item for it
  CHECK(find()[2].segments[0] == 3u);
  cache.forget(fps, {2});
  CHECK(!find()[2].known());
}

TEST(the_location_cache_stays_within_its_bound_and_drops_what_was_used_longest_ago) {
  LocationCache cache(4);  // one set
  std::vector<Fingerprint> fps;
  for (uint64_t i = 0; i < 6; ++i) fps.push_back({i + 1, i});
  std::vector<ObjectLocation> where(6), found(6);
  for (auto& w : where) w.segments[0] = 1;
  for (uint32_t i = 0; i < 4; ++i) cache.store(fps, {i}, where);
  cache.find(fps, {0}, &found);  // a use
  cache.store(fps, {4}, where);
  cache.store(fps, {5}, where);
  found.assign(6, {});
  cache.find(fps, {0, 1, 2, 3, 4, 5}, &found);
  CHECK(found[0].known() && !found[1].known() && !found[2].known() && found[3].known());
  CHECK(found[4].known() && found[5].known());
}

TEST(a_location_takes_one_place_however_often_it_is_stored) {
  LocationCache cache(4);  // one set
  std::vector<Fingerprint> fps;
  for (uint64_t i = 0; i < 4; ++i) fps.push_back({i + 1, i});
  std::vector<ObjectLocation> where(4), found(4);
  for (uint32_t round = 1; round <= 3; ++round)
    for (uint32_t i = 0; i < 4; ++i) {
      where[i].segments[0] = 10 * round + i;
      cache.store(fps, {i}, where);
    }
  cache.find(fps, {0, 1, 2, 3}, &found);
  for (uint32_t i = 0; i < 4; ++i) CHECK_EQ(found[i].segments[0], 30 + i);
}

TEST(a_location_cache_of_no_entries_keeps_nothing) {
  LocationCache cache(0);
  const std::vector<Fingerprint> fps = {{1, 2}};
  std::vector<ObjectLocation> where(1), found(1);
  where[0].segments[0] = 1;
  cache.store(fps, {0}, where);
  cache.find(fps, {0}, &found);
  CHECK(!found[0].known());
}

TEST(registered_ranges_never_overlap_and_registering_again_is_nothing) {
  RegisteredMemory memory;
  const int fd = ::memfd_create("test", MFD_CLOEXEC), other = ::memfd_create("test", MFD_CLOEXEC);
  CHECK(::ftruncate(fd, 8192) == 0 && ::ftruncate(other, 8192) == 0);
  CHECK(memory.add(0x10000, 8192, fd));
  CHECK(memory.add(0x10000, 8192, fd));
  CHECK(!memory.add(0x10000, 8192, other));
  CHECK(!memory.add(0x10000, 4096, fd));
  CHECK(!memory.add(0x11000, 8192, other));
  CHECK(!memory.add(0xF000, 8192, other));
  CHECK(!memory.add(0x20000, 8193, other));
  CHECK(!memory.add(0x20000, 0, other));
  CHECK(memory.add(0x12000, 8192, other));
  CHECK_EQ(memory.find(0x11FFF)->address, 0x10000u);
  CHECK_EQ(memory.find(0x12000)->address, 0x12000u);
  CHECK(memory.find(0x14000) == nullptr);
  CHECK(memory.find(0xFFFF) == nullptr);
  const auto range = memory.find(0x10000);
  CHECK(range->contains(0x10000, 8192) && !range->contains(0x10001, 8192) && !range->contains(0xFFFF, 1));
  CHECK(!range->contains(0x11000, UINT64_MAX));
  memory.remove(0x10000);
  CHECK(memory.find(0x10000) == nullptr);
  CHECK(!memory.current(range->id));
  CHECK(range->fd >= 0);  // the holder keeps it alive
  ::close(fd);
  ::close(other);
}

TEST(a_shared_buffer_is_registered_for_its_lifetime_and_can_not_shrink) {
  uint64_t address = 0;
  {
    SharedBuffer buffer(100000);
    address = reinterpret_cast<uint64_t>(buffer.data());
    std::memset(buffer.data(), 7, buffer.size_bytes());
    CHECK(RegisteredMemory::shared_buffers().find(address + 99999) != nullptr);
    CHECK(::ftruncate(buffer.fd(), 10) != 0);
  }
  CHECK(RegisteredMemory::shared_buffers().find(address) == nullptr);
  CHECK_THROWS(SharedBuffer(0), std::invalid_argument);
}

TEST(all_parts_run_once_also_when_parts_run_parts_and_all_workers_are_busy) {
  WorkerPool pool(3);
  std::atomic<int> leaves{0};
  for (int round = 0; round < 50; ++round)
    CHECK(pool.run(6, [&](size_t) { pool.run(5, [&](size_t) { leaves.fetch_add(1); }); }));
  CHECK_EQ(leaves.load(), 50 * 30);
  CHECK(pool.thread_count() <= 3u);
  CHECK(!pool.run(4, [&](size_t i) {
    leaves.fetch_add(1);
    if (i == 2) throw std::runtime_error("part");
  }));
  CHECK_EQ(leaves.load(), 50 * 30 + 4);
  pool.close();
  CHECK(pool.run(4, [&](size_t) { leaves.fetch_add(1); }));
  CHECK_EQ(leaves.load(), 50 * 30 + 8);
}

TEST(posted_tasks_run_once_at_the_latest_when_the_pool_is_closed) {
  WorkerPool pool(2);
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i) pool.post([&] { done.fetch_add(1); });
  pool.close();
  CHECK_EQ(done.load(), 100);
  pool.post([&] { done.fetch_add(1); });
  CHECK_EQ(done.load(), 101);
}

TEST(a_segment_map_that_is_cut_or_ambiguous_is_refused) {
  const auto record = [](wire::Writer& w, uint32_t index) {
    w.u32(index).u8(1).zeros(3).zeros(32).u64(100).u64(10).u16(4).u16(99).u16(2).u16(0).raw("host", 4).raw(
        "/x", 2);
  };
  wire::Writer good;
  good.u32(2).u32(0);
  record(good, 5);
  record(good, 3);
  const SegmentMap map = read_segment_map(wire::Reader(good.data(), good.size()), 9);
  CHECK_EQ(map.segments.size(), 2u);
  CHECK_EQ(map.segments[0].index, 3u);
  CHECK_EQ(map.segments[1].tcp_port, 99);
  CHECK_EQ(map.segments[1].unix_path, std::string("/x"));
  for (size_t cut = 0; cut < good.size(); ++cut)
    CHECK_THROWS(read_segment_map(wire::Reader(good.data(), cut), 9), wire::WireError);
  wire::Writer twice;
  twice.u32(2).u32(0);
  record(twice, 5);
  record(twice, 5);
  CHECK_THROWS(read_segment_map(wire::Reader(twice.data(), twice.size()), 9), wire::WireError);
  wire::Writer many;
  many.u32(0xFFFFFFFF).u32(0);
  CHECK_THROWS(read_segment_map(wire::Reader(many.data(), many.size()), 9), wire::WireError);
}

TEST_MAIN()
