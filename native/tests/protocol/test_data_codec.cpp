#include <random>

#include "check.hpp"
#include "protocol/data_codec.hpp"

using namespace kvstore;
using namespace kvstore::data_codec;
using wire::Status;
using wire::WireError;

namespace {

FrameReply reply_of(const wire::Writer& fields, uint64_t payload_bytes = 0) {
  FrameReply reply;
  reply.status = Status::kOk;
  reply.fields = fields.data();
  reply.fields_bytes = fields.size();
  reply.payload_bytes = payload_bytes;
  return reply;
}

wire::Writer get_fields(uint32_t count, Status status, uint32_t length, uint8_t alg = 1) {
  wire::Writer w;
  w.u32(count).u32(0);
  for (uint32_t i = 0; i < count; ++i)
    w.u8(static_cast<uint8_t>(status)).u8(alg).u16(0).u32(length).u32(7).u32(0);
  return w;
}

const PoolGeometry kGeometry{1 << 20, 4096, 16, 128, {}};

wire::Writer locate_fields(uint64_t offset, uint64_t generation, uint32_t length, uint32_t slot,
                           uint8_t alg = 1) {
  wire::Writer w;
  w.u32(1).u32(0).u64(offset).u64(generation).u32(length).u32(7).u32(slot).u8(0).u8(alg).u16(0);
  return w;
}

}  // namespace

TEST(a_get_reply_is_read_only_when_it_answers_what_was_asked) {
  const auto good = get_fields(2, Status::kOk, 100);
  CHECK_EQ(read_get_reply(reply_of(good, 200), {100, 100}).size(), 2u);
  CHECK_THROWS(read_get_reply(reply_of(good, 199), {100, 100}), WireError);
  CHECK_THROWS(read_get_reply(reply_of(good, 201), {100, 100}), WireError);
  CHECK_THROWS(read_get_reply(reply_of(good, 200), {100, 101}), WireError);
  CHECK_THROWS(read_get_reply(reply_of(good, 200), {100}), WireError);
  CHECK_THROWS(read_get_reply(reply_of(good, 200), {100, 100, 100}), WireError);
  const auto unknown_digest = get_fields(1, Status::kOk, 100, 9);
  CHECK_THROWS(read_get_reply(reply_of(unknown_digest, 100), {100}), WireError);
  const auto misses = get_fields(2, Status::kMiss, 4000000000u, 0);
  CHECK(read_get_reply(reply_of(misses, 0), {100, 100})[1].status == Status::kMiss);
  CHECK_THROWS(read_get_reply(reply_of(misses, 1), {100, 100}), WireError);
}

TEST(a_location_outside_of_the_pool_is_refused) {
  const auto read = [](const wire::Writer& w) { return read_locate_reply(reply_of(w), {100}, kGeometry); };
  CHECK(read(locate_fields((1 << 20) - 100, 2, 100, 15))[0].status == Status::kOk);
  CHECK(read(locate_fields(0, 2, 99, 0))[0].status == Status::kLengthMismatch);
  CHECK_THROWS(read(locate_fields((1 << 20) - 99, 2, 100, 0)), WireError);
  CHECK_THROWS(read(locate_fields(UINT64_MAX, 2, 100, 0)), WireError);
  CHECK_THROWS(read(locate_fields(UINT64_MAX - 50, 2, 100, 0)), WireError);
  CHECK_THROWS(read(locate_fields(0, 3, 100, 0)), WireError);
  CHECK_THROWS(read(locate_fields(0, 2, 100, 16)), WireError);
  CHECK_THROWS(read(locate_fields(0, 2, 100, 0, 2)), WireError);
}

TEST(a_slot_table_that_does_not_fit_the_map_is_refused) {
  const auto attach = [](uint64_t map, uint64_t table, uint32_t slots, uint32_t slot_bytes) {
    wire::Writer w;
    w.u64(map).u64(table).u32(slots).u32(slot_bytes).zeros(16);
    return read_attach_reply(reply_of(w));
  };
  CHECK_EQ(attach(4096, 0, 32, 128).slot_count, 32u);
  CHECK_THROWS(attach(4096, 0, 33, 128), WireError);
  CHECK_THROWS(attach(4096, 4097, 1, 128), WireError);
  CHECK_THROWS(attach(4096, 1, 1, 128), WireError);
  CHECK_THROWS(attach(4096, 0, 1, 64), WireError);
  CHECK_THROWS(attach(4096, 0, 0, 128), WireError);
  CHECK_THROWS(attach(4096, 0, UINT32_MAX, 0xFFFFFFF8u), WireError);
  wire::Writer tiny;
  tiny.u64(4096);
  CHECK_THROWS(read_attach_reply(reply_of(tiny)), WireError);
}

TEST(statuses_of_another_count_are_refused_and_unknown_codes_are_internal) {
  wire::Writer w;
  w.u32(3).u32(0).u8(0).u8(200).u8(2);
  const auto statuses = read_statuses(reply_of(w), 3);
  CHECK(statuses[0] == Status::kOk && statuses[1] == Status::kInternal && statuses[2] == Status::kExists);
  CHECK_THROWS(read_statuses(reply_of(w), 2), WireError);
  CHECK_THROWS(read_statuses(reply_of(w), 4), WireError);
}

TEST(the_answer_to_a_put_is_read_with_a_journal_number_and_without_one) {
  wire::Writer w;
  w.u32(2).u32(0).u8(0).u8(2);
  CHECK_EQ(read_put_reply(reply_of(w), 2).journal_seq, 0u);  // a segment that has no COMMIT
  w.u64((7ull << 32) + 9).u32(1);                            // and of a later one, more
  const PutAnswer answer = read_put_reply(reply_of(w), 2);
  CHECK_EQ(answer.journal_seq, (7ull << 32) + 9);
  CHECK(answer.statuses[1] == Status::kExists);
  CHECK_EQ(answer.not_kept, 0u);
  CHECK_THROWS(read_put_reply(reply_of(w), 3), WireError);
  w.u32(0);  // of a put with an intent
  CHECK_EQ(read_put_reply(reply_of(w), 2).not_kept, 1u);
}

TEST(random_bytes_are_read_or_refused_and_never_lead_outside) {
  const unsigned seed = 99;
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    wire::Writer w;
    const size_t n = random() % 120;
    for (size_t i = 0; i < n; ++i) w.u8(static_cast<uint8_t>(random() % 4 == 0 ? random() : 0));
    if (n >= 4 && random() % 2) w.buffer()[0] = 1, w.buffer()[1] = w.buffer()[2] = w.buffer()[3] = 0;
    try {
      for (const auto& l : read_locate_reply(reply_of(w), {100}, kGeometry))
        CHECK(l.status != Status::kOk ||
              (l.offset + 100 <= kGeometry.map_bytes && l.slot < kGeometry.slot_count));
    } catch (const WireError&) {
    }
    try {
      read_get_reply(reply_of(w, random() % 200), {100});
    } catch (const WireError&) {
    }
    try {
      read_statuses(reply_of(w), 1);
    } catch (const WireError&) {
    }
  }
}

TEST_MAIN()
