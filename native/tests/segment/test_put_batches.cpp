#include "check.hpp"
#include "segment/put_batches.hpp"

using kvstore::PutBatches;

TEST(a_batch_is_open_from_its_beginning_until_it_is_closed) {
  PutBatches batches;
  CHECK(!batches.is_open(0));
  const uint32_t one = batches.open(1), other = batches.open(1);
  CHECK(one != 0 && other != 0 && one != other);
  CHECK(batches.is_open(one) && batches.is_open(other));
  batches.close(one);
  CHECK(!batches.is_open(one) && batches.is_open(other));
  CHECK(!batches.begin_request(one, 2));
}

TEST(a_commit_ends_the_batches_that_it_covers_but_for_those_with_a_request_running) {
  PutBatches batches;
  const uint32_t covered = batches.open(1), running = batches.open(1), further = batches.open(1);
  for (const uint32_t batch : {covered, running, further}) CHECK(batches.begin_request(batch, 1));
  batches.end_request(covered, 10, 2);
  batches.end_request(further, 11, 2);
  batches.close_up_to(10);
  CHECK(!batches.is_open(covered));
  CHECK(batches.is_open(running) && batches.is_open(further));
  batches.end_request(running, 9, 3);
  batches.close_up_to(10);
  CHECK(!batches.is_open(running) && batches.is_open(further));
}

TEST(a_batch_that_nothing_is_heard_of_ends_unless_a_request_is_running) {
  PutBatches batches;
  const uint32_t idle = batches.open(1), running = batches.open(1);
  batches.begin_request(idle, 1);
  batches.begin_request(running, 1);
  batches.end_request(idle, 1, 5);
  batches.expire(4 + PutBatches::kIdleMsMax);
  CHECK(batches.is_open(idle));
  batches.expire(5 + PutBatches::kIdleMsMax);
  CHECK(!batches.is_open(idle) && batches.is_open(running));
}

TEST_MAIN()
