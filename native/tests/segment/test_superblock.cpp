#include <cstring>
#include <vector>

#include "check.hpp"
#include "segment/superblock.hpp"

using namespace kvstore;
using Verdict = Superblock::Verdict;

namespace {

const PoolId kPool = {1, 2, 3};
const SegmentId kSegment = {4, 5, 6};
const PoolShape kShape = {8u << 20, 4u << 20, 4096, 2u << 20, 6u << 20, 4096, 128, 2};
const FileIdentity kFile = {7, 8};

struct Pool {
  alignas(64) uint8_t page[Superblock::kBytes] = {};
  Superblock superblock{page};
  Pool() {
    superblock.begin_format(kPool, kSegment, kShape, kFile);
    superblock.end_format();
  }
};

Superblock::Expected expected() { return {kSegment, kShape, kFile, current_boot_id()}; }

bool says(const Superblock::Judgement& judgement, Verdict verdict, const char* text) {
  return judgement.verdict == verdict && judgement.reason.find(text) != std::string::npos;
}

}  // namespace

TEST(a_pool_of_this_segment_size_and_boot_is_warm) {
  Pool pool;
  const auto judgement = Superblock::judge(pool.page, expected());
  CHECK(judgement.verdict == Verdict::kWarm && judgement.reason.empty());
  CHECK(pool.superblock.pool_id() == kPool);
  CHECK(pool.superblock.shape() == kShape);
  CHECK_EQ(Superblock::capacity_bytes(pool.page), kShape.capacity_bytes);
}

TEST(a_pool_that_was_never_finished_is_empty) {
  Pool pool;
  std::memset(pool.page, 0, sizeof(pool.page));
  CHECK(says(Superblock::judge(pool.page, expected()), Verdict::kEmpty, "before it had written anything"));
  pool.superblock.begin_format(kPool, kSegment, kShape, kFile);
  CHECK(says(Superblock::judge(pool.page, expected()), Verdict::kEmpty, "before it was whole"));
  CHECK_EQ(Superblock::capacity_bytes(pool.page), uint64_t{0});
}

TEST(a_pool_of_an_earlier_boot_or_copied_from_another_file_is_empty) {
  Pool pool;
  auto here = expected();
  here.boot_id[3] ^= 1;
  CHECK(says(Superblock::judge(pool.page, here), Verdict::kEmpty, "restarted"));
  here = expected();
  here.file.inode = 9;
  CHECK(says(Superblock::judge(pool.page, here), Verdict::kEmpty, "copy"));
  here = expected();
  here.file.device = 9;
  CHECK(says(Superblock::judge(pool.page, here), Verdict::kEmpty, "copy"));
}

TEST(what_is_not_ours_is_refused_with_the_remedy) {
  Pool pool;
  auto here = expected();
  here.segment_id[0] ^= 1;
  CHECK(says(Superblock::judge(pool.page, here), Verdict::kRefused, "another segment"));
  here = expected();
  here.shape.capacity_bytes *= 2;
  CHECK(says(Superblock::judge(pool.page, here), Verdict::kRefused, "set capacity as it was"));
  here = expected();
  here.shape.journal_entries += 1;
  CHECK(Superblock::judge(pool.page, here).verdict == Verdict::kRefused);
  pool.page[8] = Superblock::kFormat + 1;
  pool.page[16] ^= 1;  // its check is another one, too
  CHECK(says(Superblock::judge(pool.page, expected()), Verdict::kRefused, "a later release"));
  // Whatever else a later format has changed, and also while that release makes one.
  std::memset(pool.page + 12, 0xAB, sizeof(pool.page) - 12);
  CHECK(says(Superblock::judge(pool.page, expected()), Verdict::kRefused, "a later release"));
  std::vector<uint8_t> text(Superblock::kBytes, 'x');
  CHECK(says(Superblock::judge(text.data(), expected()), Verdict::kRefused, "not a pool"));
}

TEST(a_flipped_bit_of_its_magic_or_format_is_damage_and_keeps_no_segment_from_starting) {
  for (size_t bit = 0; bit < 12 * 8; ++bit) {
    Pool pool;
    pool.page[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    const auto judgement = Superblock::judge(pool.page, expected());
    CHECK(judgement.verdict == Verdict::kEmpty);
    CHECK(Superblock::is_damaged(pool.page));
    auto other = expected();
    other.segment_id[0] ^= 1;
    if (bit < 8 * 8) CHECK(says(Superblock::judge(pool.page, other), Verdict::kRefused, "not a pool"));
  }
  Pool pool;
  CHECK(!Superblock::is_damaged(pool.page));
}

TEST(a_flipped_bit_never_leaves_a_pool_warm_under_another_identity) {
  for (size_t bit = 0; bit < sizeof(Pool::page) * 8; ++bit) {
    Pool pool;
    pool.superblock.set_cluster_id({9, 9});
    pool.page[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    if (Superblock::judge(pool.page, expected()).verdict != Verdict::kWarm) continue;
    CHECK(pool.superblock.pool_id() == kPool);
    CHECK(pool.superblock.shape() == kShape);
    CHECK(pool.superblock.cluster_id() == (ClusterId{9, 9}));
  }
}

TEST(the_cluster_is_filled_in_later) {
  Pool pool;
  CHECK(pool.superblock.cluster_id() == ClusterId{});
  pool.superblock.set_cluster_id({1, 2});
  CHECK(pool.superblock.cluster_id() == (ClusterId{1, 2}));
  CHECK(Superblock::judge(pool.page, expected()).verdict == Verdict::kWarm);
}

TEST_MAIN()
