// Pages come and are demoted as a test wants; the judge is asked whether that was wise.
#include <random>

#include "check.hpp"
#include "segment/demotion_judge.hpp"

using namespace kvstore;

namespace {

using Touch = DemotionJudge::Touch;
constexpr NamespaceId kOne = {1}, kTwo = {2};
constexpr uint32_t kObjects = 1000;

uint64_t id_of(uint64_t page) { return mix64(page + 1); }

// Pages that come back and pages that don't, half of each; `demotes` says which of them are demoted.
template <typename Demotes>
void play(DemotionJudge& judge, const NamespaceId& ns, uint64_t rounds, const Demotes& demotes) {
  static uint64_t fresh = 1u << 20;
  for (uint64_t round = 0; round < rounds; ++round) {
    const bool returns = round % 2 == 0;
    const uint64_t page = id_of(returns ? round / 2 % 200 : fresh++);
    judge.touched(ns, page, Touch::kCame, kObjects);
    if (demotes(returns)) judge.demoted(ns, page);
  }
}

}  // namespace

TEST(demotions_are_heeded_at_first_and_go_on_to_be_while_they_name_what_does_not_come_back) {
  DemotionJudge judge(9);
  CHECK(judge.heeds(kOne));
  play(judge, kOne, 20'000, [](bool returns) { return !returns; });
  CHECK(judge.heeds(kOne));
}

TEST(demotions_of_what_comes_back_are_not_heeded_until_they_have_become_better) {
  DemotionJudge judge(9);
  play(judge, kOne, 20'000, [](bool returns) { return returns; });
  CHECK(!judge.heeds(kOne));
  play(judge, kOne, 20'000, [](bool returns) { return !returns; });
  CHECK(judge.heeds(kOne));
}

TEST(one_namespace_is_not_judged_by_what_another_demotes) {
  DemotionJudge judge(9);
  for (int turn = 0; turn < 200; ++turn) {
    play(judge, kOne, 100, [](bool returns) { return returns; });
    play(judge, kTwo, 100, [](bool returns) { return !returns; });
  }
  CHECK(!judge.heeds(kOne));
  CHECK(judge.heeds(kTwo));
}

TEST(pages_that_everybody_uses_do_not_make_demotions_of_what_comes_back_look_right) {
  DemotionJudge judge(9);
  for (uint64_t round = 0; round < 20'000; ++round) {
    for (uint64_t page = 1u << 19; page < (1u << 19) + 5; ++page)
      judge.touched(kOne, id_of(page), round == 0 ? Touch::kCame : Touch::kUsed, kObjects);
    const uint64_t demoted = id_of((1u << 18) + round % 500), other = id_of((1u << 30) + round);
    judge.touched(kOne, demoted, Touch::kCame, kObjects);
    judge.demoted(kOne, demoted);
    judge.touched(kOne, other, Touch::kCame, kObjects);
  }
  CHECK(!judge.heeds(kOne));
}

TEST(a_few_pages_that_come_back_are_no_evidence) {
  DemotionJudge judge(9);
  for (uint64_t page = 0; page < 5; ++page) {
    judge.touched(kOne, id_of(page), Touch::kCame, kObjects);
    judge.demoted(kOne, id_of(page));
    judge.touched(kOne, id_of(page), Touch::kCame, kObjects);
  }
  CHECK(judge.heeds(kOne));
}

TEST(more_namespaces_than_are_judged_are_heeded_all_the_same) {
  DemotionJudge judge(9);
  for (uint32_t i = 0; i < 3 * DemotionJudge::kNamespacesMax; ++i) {
    NamespaceId ns{};
    std::memcpy(ns.data(), &i, sizeof(i));
    judge.touched(ns, id_of(i), Touch::kCame, kObjects);
    judge.demoted(ns, id_of(i));
    CHECK(judge.heeds(ns));
  }
}

TEST_MAIN()
