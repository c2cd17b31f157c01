#include <algorithm>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "segment/extent_allocator.hpp"

using kvstore::ExtentAllocator;

constexpr uint64_t kUnit = ExtentAllocator::kUnitBytes;

static uint64_t take(ExtentAllocator& extents, uint64_t size) {
  const auto offset = extents.allocate(size);
  CHECK(offset.has_value());
  return offset.value_or(UINT64_MAX);
}

TEST(sizes_are_rounded_up_to_units) {
  CHECK_EQ(ExtentAllocator::rounded(0), kUnit);
  CHECK_EQ(ExtentAllocator::rounded(1), kUnit);
  CHECK_EQ(ExtentAllocator::rounded(kUnit), kUnit);
  CHECK_EQ(ExtentAllocator::rounded(kUnit + 1), 2 * kUnit);
}

TEST(best_fit_takes_the_smallest_hole_that_is_large_enough) {
  ExtentAllocator extents(100 * kUnit);
  const uint64_t a = take(extents, 10 * kUnit), gap = take(extents, kUnit), b = take(extents, 4 * kUnit);
  extents.allocate(kUnit);
  extents.free(a, 10 * kUnit);
  extents.free(b, 4 * kUnit);
  CHECK_EQ(take(extents, 3 * kUnit), b);
  CHECK_EQ(take(extents, 5 * kUnit), a);
  CHECK(gap != a && gap != b);
}

TEST(a_full_pool_says_so_and_freed_neighbours_become_one_again) {
  ExtentAllocator extents(8 * kUnit + kUnit / 2);
  std::vector<uint64_t> all;
  for (int i = 0; i < 8; ++i) all.push_back(take(extents, 1));
  CHECK(!extents.allocate(1));
  CHECK_EQ(extents.used_bytes(), extents.capacity_bytes());
  for (const int i : {1, 3, 2, 0, 7, 5, 6, 4}) extents.free(all[i], 1);
  CHECK_EQ(extents.free_extent_count(), size_t{1});
  CHECK_EQ(extents.largest_free_bytes(), 8 * kUnit);
  CHECK(!extents.allocate(8 * kUnit + 1));
  CHECK_EQ(take(extents, 8 * kUnit), uint64_t{0});
}

TEST(a_free_of_what_is_not_in_use_is_refused_and_changes_nothing) {
  ExtentAllocator extents(16 * kUnit);
  const uint64_t a = take(extents, 4 * kUnit);
  CHECK_THROWS(extents.free(a + 1, kUnit), std::logic_error);
  CHECK_THROWS(extents.free(a, 5 * kUnit), std::logic_error);
  CHECK_THROWS(extents.free(16 * kUnit, kUnit), std::logic_error);
  CHECK_THROWS(extents.free(UINT64_MAX - kUnit + 1, kUnit), std::logic_error);
  extents.free(a, 4 * kUnit);
  CHECK_THROWS(extents.free(a, 4 * kUnit), std::logic_error);
  CHECK_THROWS(extents.free(a + 2 * kUnit, kUnit), std::logic_error);  // begins in what is free
  CHECK_EQ(extents.used_bytes(), uint64_t{0});
  const uint64_t b = take(extents, 4 * kUnit), c = take(extents, 4 * kUnit);
  extents.free(b, 4 * kUnit);
  CHECK_THROWS(extents.free(c - kUnit, 2 * kUnit), std::logic_error);
  CHECK_EQ(extents.used_bytes(), 4 * kUnit);
}

// The reference: one flag a unit.
struct Model {
  std::vector<bool> used;
  explicit Model(size_t units) : used(units) {}
  bool fits(size_t units) const {
    size_t run = 0;
    for (const bool u : used) {
      run = u ? 0 : run + 1;
      if (run >= units) return true;
    }
    return false;
  }
  size_t holes() const {
    size_t count = 0;
    for (size_t i = 0; i < used.size(); ++i) count += !used[i] && (i == 0 || used[i - 1]);
    return count;
  }
};

TEST(random_traffic_agrees_with_a_bitmap) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  constexpr size_t kUnits = 700;
  ExtentAllocator extents(kUnits * kUnit);
  Model model(kUnits);
  struct Extent {
    uint64_t offset, size;
  };
  std::vector<Extent> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || rng() % 100 < 55) {
      const uint64_t size = rng() % 5 == 0 ? rng() % (60 * kUnit) : rng() % (6 * kUnit);
      const size_t units = ExtentAllocator::rounded(size) / kUnit;
      const bool expected = model.fits(units);
      const auto got = extents.allocate(size);
      CHECK_EQ(got.has_value(), expected);
      if (!got) continue;
      CHECK_EQ(*got % kUnit, uint64_t{0});
      for (size_t u = *got / kUnit; u < *got / kUnit + units; ++u) {
        CHECK(u < kUnits && !model.used[u]);
        model.used[u] = true;
      }
      live.push_back({*got, size});
    } else {
      std::swap(live[rng() % live.size()], live.back());
      const Extent e = live.back();
      live.pop_back();
      extents.free(e.offset, e.size);
      const size_t units = ExtentAllocator::rounded(e.size) / kUnit;
      std::fill_n(model.used.begin() + static_cast<ptrdiff_t>(e.offset / kUnit), units, false);
    }
    if (step % 64 == 0) {
      CHECK_EQ(extents.free_extent_count(), model.holes());
      CHECK_EQ(extents.used_bytes(),
               kUnit * static_cast<uint64_t>(std::count(model.used.begin(), model.used.end(), true)));
    }
  }
  for (const Extent& e : live) extents.free(e.offset, e.size);
  CHECK_EQ(extents.free_extent_count(), size_t{1});
  CHECK_EQ(extents.largest_free_bytes(), kUnits * kUnit);
}

TEST_MAIN()
