#include <map>
#include <random>

#include "check.hpp"
#include "segment/retention.hpp"

using namespace kvstore;

namespace {

constexpr NamespaceId kOne = {1}, kTwo = {2};
constexpr wire::KeepWish kRetain{wire::Intent::kRetain, 10'000}, kDemote{wire::Intent::kDemote, 0},
    kNormal{wire::Intent::kNormal, 0};

struct Rig {
  explicit Rig(uint64_t bytes_max = 1000, uint64_t namespace_bytes_max = 600)
      : retention(
            {bytes_max, namespace_bytes_max}, [this](uint32_t slot, Keep keep) { told[slot] = keep; }, 5) {}
  bool keep(uint32_t slot, const wire::KeepWish& wish, const NamespaceId& ns = kOne,
            uint64_t size_bytes = 100) {
    return retention.keep({slot, ns, slot + 1000, size_bytes}, wish, now_ms);
  }
  void pass_ms(uint64_t ms) {
    now_ms += ms;
    retention.expire(now_ms, 1u << 20);
  }
  std::map<uint32_t, Keep> told;
  Retention retention;
  uint64_t now_ms = 1'000'000;
};

}  // namespace

TEST(what_is_retained_is_told_until_its_time_is_over) {
  Rig rig;
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.told[3] == Keep::kRetained);
  CHECK_EQ(rig.retention.totals().retained_bytes, 100u);
  rig.pass_ms(9'000);
  CHECK(rig.retention.of(3) == Keep::kRetained);
  rig.pass_ms(1'500);
  CHECK(rig.retention.of(3) == Keep::kNormal);
  CHECK(rig.told[3] == Keep::kNormal);
  CHECK_EQ(rig.retention.totals().retained_bytes, 0u);
  CHECK_EQ(rig.retention.totals().expired, 1u);
}

TEST(a_second_retention_lengthens_the_first_and_never_shortens_it) {
  Rig rig;
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.keep(3, {wire::Intent::kRetain, 20'000}));
  CHECK(rig.keep(3, {wire::Intent::kRetain, 1}));
  CHECK_EQ(rig.retention.totals().retained_bytes, 100u);
  rig.pass_ms(19'000);
  CHECK(rig.retention.of(3) == Keep::kRetained);
  rig.pass_ms(1'500);
  CHECK(rig.retention.of(3) == Keep::kNormal);
}

TEST(a_retention_of_no_time_lasts_half_an_hour_and_none_over_a_day) {
  Rig rig;
  CHECK(rig.keep(1, {wire::Intent::kRetain, 0}));
  CHECK(rig.keep(2, {wire::Intent::kRetain, UINT32_MAX}));
  rig.pass_ms(wire::kKeepTtlMsDefault - 1000);
  CHECK(rig.retention.of(1) == Keep::kRetained);
  rig.pass_ms(1500);
  CHECK(rig.retention.of(1) == Keep::kNormal);
  CHECK(rig.retention.of(2) == Keep::kRetained);
  rig.pass_ms(wire::kKeepTtlMsMax - wire::kKeepTtlMsDefault);
  CHECK(rig.retention.of(2) == Keep::kNormal);
}

TEST(a_namespace_retains_no_more_than_its_budget_and_leaves_the_rest_to_others) {
  Rig rig;
  for (uint32_t slot = 0; slot < 6; ++slot) CHECK(rig.keep(slot, kRetain));
  CHECK(!rig.keep(6, kRetain));
  CHECK(rig.retention.of(6) == Keep::kWanted);
  for (uint32_t slot = 10; slot < 14; ++slot) CHECK(rig.keep(slot, kRetain, kTwo));
  CHECK(!rig.keep(14, kRetain, kTwo));  // over that of all
  CHECK_EQ(rig.retention.totals().retained_bytes, 1000u);
  CHECK_EQ(rig.retention.totals().over_budget, 2u);
  CHECK(rig.keep(3, kRetain));  // it has its share already
}

TEST(an_object_that_goes_gives_its_share_back) {
  Rig rig;
  for (uint32_t slot = 0; slot < 6; ++slot) CHECK(rig.keep(slot, kRetain));
  rig.told.clear();
  rig.retention.forget(2, kOne);
  CHECK(rig.told.empty());  // it is not ranked any more
  CHECK_EQ(rig.retention.room_bytes(kOne), 100u);
  CHECK(rig.keep(7, kRetain));
  CHECK(rig.keep(7, kNormal));
  CHECK(rig.told[7] == Keep::kNormal);
  CHECK(rig.keep(8, kRetain));
}

TEST(what_is_demoted_is_so_until_it_is_used) {
  Rig rig;
  CHECK(rig.keep(3, kDemote));
  CHECK(rig.told[3] == Keep::kDemoted);
  CHECK_EQ(rig.retention.totals().demoted_objects, 1u);
  rig.retention.used(3, kOne, 1003, 100);
  CHECK(rig.told[3] == Keep::kNormal);
  CHECK_EQ(rig.retention.totals().demoted_objects, 0u);
}

TEST(what_comes_with_a_wish_is_ranked_by_it_and_then_kept_without_being_told_twice) {
  Rig rig;
  CHECK(rig.retention.came({3, kOne, 1003, 100}, wire::Intent::kRetain, 100) == Keep::kWanted);
  CHECK(rig.retention.came({4, kOne, 1004, 100}, wire::Intent::kDemote, 100) == Keep::kDemoted);
  CHECK(rig.retention.came({5, kOne, 1005, 100}, wire::Intent::kNormal, 100) == Keep::kNormal);
  CHECK_EQ(rig.retention.totals().demoted_objects, 1u);
  CHECK(rig.keep(4, kDemote));
  CHECK(rig.told.empty());
  CHECK_EQ(rig.retention.totals().demoted_objects, 1u);
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.told[3] == Keep::kRetained);
  rig.retention.used(4, kOne, 1004, 100);
  CHECK(rig.told[4] == Keep::kNormal);
  CHECK_EQ(rig.retention.totals().demoted_objects, 0u);
}

TEST(what_is_spared_a_demotion_is_wanted_and_what_is_retained_stays_so) {
  Rig rig;
  CHECK(rig.keep(3, kDemote));
  CHECK(rig.keep(4, kRetain));
  for (uint32_t slot = 3; slot < 5; ++slot) rig.retention.spare({slot, kOne, slot + 1000, 100});
  CHECK(rig.told[3] == Keep::kWanted);
  CHECK(rig.told[4] == Keep::kRetained);
  CHECK_EQ(rig.retention.totals().demoted_objects, 0u);
  CHECK_EQ(rig.retention.totals().demotions_contradicted, 2u);
}

TEST(the_last_wish_counts) {
  Rig rig;
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.keep(3, kDemote));
  CHECK(rig.told[3] == Keep::kDemoted);
  CHECK_EQ(rig.retention.totals().retained_bytes, 0u);
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.told[3] == Keep::kRetained);
  CHECK_EQ(rig.retention.totals().demoted_objects, 0u);
  rig.pass_ms(20'000);
  CHECK(rig.told[3] == Keep::kNormal);
}

TEST(a_demoted_object_that_can_t_be_retained_for_lack_of_room_is_wanted) {
  Rig rig(50, 50);
  CHECK(rig.keep(3, kDemote));
  CHECK(!rig.keep(3, kRetain));
  CHECK(rig.told[3] == Keep::kWanted);
  CHECK_EQ(rig.retention.totals().demoted_objects, 0u);
}

TEST(what_is_wanted_is_so_until_it_is_used_or_there_is_room_to_retain_it) {
  Rig rig(100, 100);
  CHECK(rig.keep(1, kRetain));
  CHECK(!rig.keep(2, kRetain));
  CHECK(!rig.keep(3, kRetain));
  CHECK(rig.told[2] == Keep::kWanted && rig.told[3] == Keep::kWanted);
  CHECK_EQ(rig.retention.totals().retained_objects, 1u);
  rig.retention.used(2, kOne, 1002, 100);
  CHECK(rig.told[2] == Keep::kNormal);
  CHECK(rig.keep(1, kNormal));
  CHECK(rig.keep(3, kRetain));
  CHECK(rig.told[3] == Keep::kRetained);
  rig.retention.used(3, kOne, 1003, 100);
  CHECK(rig.told[3] == Keep::kRetained);
}

TEST(demotions_of_a_namespace_whose_demoted_pages_come_back_are_ignored_and_counted) {
  Rig rig;
  for (int round = 0; round < 40; ++round)
    for (uint32_t slot = 0; slot < 100; ++slot) {
      rig.retention.came({slot, kOne, slot + 1000, 100}, wire::Intent::kNormal, 200);
      rig.keep(slot, slot < 50 ? kDemote : kNormal);
      if (slot >= 50)
        rig.retention.came({slot, kTwo, 5000 + round * 100 + slot, 100}, wire::Intent::kNormal, 200);
    }
  // Of the namespace those not demoted come back as well, so it takes one that has others to be found out.
  for (uint32_t page = 0; page < 2000; ++page)
    rig.retention.came({200, kOne, 1u << 20 | page, 100}, wire::Intent::kNormal, 200);
  for (int round = 0; round < 40; ++round)
    for (uint32_t slot = 0; slot < 50; ++slot) {
      rig.retention.came({slot, kOne, slot + 1000, 100}, wire::Intent::kNormal, 200);
      rig.keep(slot, kDemote);
    }
  CHECK(!rig.keep(3, kDemote));
  CHECK(rig.retention.of(3) == Keep::kNormal);
  CHECK(rig.retention.totals().demotions_ignored > 0);
  CHECK(rig.keep(60, kDemote, kTwo));
}

TEST(accounts_tell_of_each_namespace_what_it_has_and_was_refused) {
  Rig rig;
  for (uint32_t slot = 0; slot < 7; ++slot) rig.keep(slot, kRetain);
  rig.keep(10, kDemote, kTwo);
  std::map<NamespaceId, Retention::Account> accounts;
  for (const auto& account : rig.retention.accounts()) accounts[account.ns] = account;
  CHECK_EQ(accounts.size(), 2u);
  CHECK_EQ(accounts[kOne].retained_bytes, 600u);
  CHECK_EQ(accounts[kOne].retained_objects, 6u);
  CHECK_EQ(accounts[kOne].over_budget, 1u);
  CHECK_EQ(accounts[kTwo].demoted_objects, 1u);
  CHECK(accounts[kTwo].demotions_heeded);
}

TEST(namespaces_over_the_most_that_have_wishes_are_refused_and_lose_nothing) {
  Rig rig(1u << 30, 1u << 30);
  const auto ns_of = [](uint32_t i) {
    NamespaceId ns{};
    std::memcpy(ns.data(), &i, sizeof(i));
    return ns;
  };
  for (uint32_t i = 0; i < Retention::kNamespacesMax; ++i) CHECK(rig.keep(i, kRetain, ns_of(i)));
  CHECK(!rig.keep(Retention::kNamespacesMax, kRetain, ns_of(Retention::kNamespacesMax)));
  CHECK_EQ(rig.retention.totals().retained_objects, uint64_t{Retention::kNamespacesMax});
}

TEST(whatever_is_wished_in_whatever_order_the_books_agree) {
  const unsigned seed = 31;
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 random(seed);
  Rig rig(2000, 1500);
  std::map<uint32_t, NamespaceId> there;
  for (int step = 0; step < 20'000; ++step) {
    const uint32_t slot = random() % 40;
    const auto known = there.find(slot);
    if (known == there.end()) {
      there[slot] = random() % 2 == 0 ? kOne : kTwo;
      rig.told[slot] = Keep::kNormal;
      continue;
    }
    switch (random() % 6) {
      case 0:
        rig.retention.forget(slot, known->second);
        there.erase(known);
        rig.told.erase(slot);
        break;
      case 1:
        rig.retention.used(slot, known->second, slot, 40);
        break;
      case 2:
        rig.pass_ms(random() % 3000);
        break;
      default:
        rig.keep(slot, {static_cast<wire::Intent>(random() % 3), 1 + random() % 30'000}, known->second);
    }
    uint64_t retained = 0, demoted = 0;
    for (const auto& [each, keep] : rig.told) {
      CHECK(rig.retention.of(each) == keep);
      retained += keep == Keep::kRetained;
      demoted += keep == Keep::kDemoted;
    }
    CHECK_EQ(rig.retention.totals().retained_bytes, 100 * retained);
    CHECK_EQ(rig.retention.totals().demoted_objects, demoted);
    CHECK(rig.retention.totals().retained_bytes <= 2000);
  }
}

TEST_MAIN()
