// Many clients that have to choose a segment at once.
#include "check.hpp"
#include "client/calls/room_choice.hpp"

using namespace kvstore;

namespace {

constexpr uint64_t kGiB = 1u << 30;
constexpr int kClients = 4000;

std::vector<RoomChoice::Candidate> segments_with(const std::vector<uint64_t>& rooms) {
  std::vector<RoomChoice::Candidate> all;
  for (uint32_t i = 0; i < rooms.size(); ++i) all.push_back({i, rooms[i], nullptr});
  return all;
}

// How many of the clients choose each segment for their first object.
std::vector<int> chosen_by_clients(const std::vector<uint64_t>& rooms) {
  std::vector<int> chosen(rooms.size());
  for (uint32_t seed = 1; seed <= kClients; ++seed)
    ++chosen[RoomChoice(segments_with(rooms), seed * 7919).choose(65536)->segment];
  return chosen;
}

}  // namespace

TEST(clients_spread_over_segments_of_the_same_room) {
  for (const int clients : chosen_by_clients({kGiB, kGiB, kGiB, kGiB}))
    CHECK(clients > kClients / 5 && clients < kClients * 3 / 10);
}

TEST(a_segment_with_more_room_is_chosen_more_often_but_not_always) {
  const std::vector<int> chosen = chosen_by_clients({kGiB, 2 * kGiB, 4 * kGiB});
  CHECK(chosen[0] < chosen[1] && chosen[1] < chosen[2]);
  CHECK(chosen[1] > kClients / 20);
  CHECK(chosen[2] < kClients * 19 / 20);
}

TEST(full_segments_are_chosen_alike_and_never_before_one_with_room) {
  for (const int clients : chosen_by_clients({0, 0, 0, 0})) CHECK(clients > kClients / 5);
  CHECK_EQ(chosen_by_clients({0, kGiB, 0})[1], kClients);
}

TEST(objects_in_a_row_share_a_segment_and_what_was_chosen_has_less_room) {
  RoomChoice choice(segments_with({8u << 20, 8u << 20}), 1);
  std::vector<uint64_t> bytes(2);
  uint32_t last = choice.choose(1)->segment;
  int changes = 0;
  for (int object = 0; object < 255; ++object) {
    const RoomChoice::Candidate* at = choice.choose(65536);
    bytes[at->segment] += 65536;
    changes += at->segment != last;
    last = at->segment;
  }
  CHECK(changes <= 3);  // 16 MiB in runs of 4
  CHECK(bytes[0] >= 4u << 20 && bytes[1] >= 4u << 20);
}

TEST(without_a_segment_that_takes_puts_there_is_no_choice) {
  CHECK(RoomChoice({}, 1).choose(65536) == nullptr);
}

TEST_MAIN()
