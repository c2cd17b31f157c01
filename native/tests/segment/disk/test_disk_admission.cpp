// What the admission's sketch remembers of pages, and that it forgets.
#include <algorithm>

#include "check.hpp"
#include "segment/disk/disk_admission.hpp"

using namespace kvstore;

namespace {

Fingerprint page(uint64_t i) { return {mix64(2 * i + 1), mix64(2 * i + 2)}; }

}  // namespace

TEST(a_page_is_counted) {
  DiskAdmission seen(1000);
  for (uint32_t n = 1; n <= 20; ++n) CHECK_EQ(seen.note(page(1)), std::min(n, DiskAdmission::kCountMax));
  CHECK_EQ(seen.note(page(2)), 1u);
}

TEST(few_of_many_pages_are_taken_for_others) {
  constexpr uint64_t kPages = 100'000;
  DiskAdmission seen(kPages);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kPages; ++i) wrong += seen.note(page(i)) != 1;
  CHECK(wrong < kPages / 100);
}

TEST(what_was_seen_long_ago_is_forgotten) {
  DiskAdmission seen(1);  // the smallest: 65,536 places
  CHECK_EQ(seen.note(page(0)), 1u);
  for (uint64_t i = 0; i < 1'200'000; ++i) seen.note(page(1));
  CHECK_EQ(seen.note(page(0)), 1u);
}

TEST_MAIN()
