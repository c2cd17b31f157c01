#include <cstring>
#include <numeric>
#include <stdexcept>

#include "check.hpp"
#include "client/pieces.hpp"
#include "protocol/wire.hpp"

using namespace kvstore;
using wire::Status;

namespace {

uint64_t address_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

// The bytes of the entries, gathered through a cursor with the given step limits.
std::vector<uint8_t> gather(const Pieces& pieces, const std::vector<uint32_t>& entries, size_t bytes_max,
                            size_t parts_max) {
  std::vector<uint8_t> all;
  PieceCursor cursor(pieces, entries);
  std::vector<PieceCursor::Part> parts;
  size_t bytes = 0, ordinal = 0;
  while (cursor.next(bytes_max, parts_max, &parts, &bytes)) {
    size_t sum = 0;
    CHECK(parts.size() <= parts_max);
    for (const auto& part : parts) {
      CHECK(part.size > 0);
      CHECK(part.ordinal >= ordinal && part.ordinal < entries.size());
      ordinal = part.ordinal;
      all.insert(all.end(), part.data, part.data + part.size);
      sum += part.size;
    }
    CHECK_EQ(sum, bytes);
    CHECK(bytes <= bytes_max);
  }
  return all;
}

}  // namespace

TEST(affine_pieces_lie_at_base_plus_stride_times_index) {
  std::vector<uint8_t> k(1000), v(1000);
  const Pieces p = Pieces::affine({{{address_of(k.data()), 100, 30}, {address_of(v.data()), 50, 7}},
                                   {{address_of(v.data()) + 500, -10, 5}}},
                                  {3, 0, 9});
  CHECK_EQ(p.entry_count(), 6u);
  CHECK_EQ(p.shard_count(), 2u);
  CHECK_EQ(p.entry_bytes(0), 37u);
  CHECK_EQ(p.entry_bytes(5), 5u);
  CHECK_EQ(p.total_bytes(), 3u * (37 + 5));
  CHECK(p.piece(0, 0).iov_base == k.data() + 300);
  CHECK(p.piece(0, 1).iov_base == v.data() + 150);
  CHECK(p.piece(1, 0).iov_base == v.data() + 500 - 30);
  CHECK(p.piece(4, 0).iov_base == k.data() + 900);
}

TEST(a_description_that_is_no_batch_is_refused) {
  uint8_t byte = 0;
  const uint64_t at = address_of(&byte);
  CHECK_THROWS(Pieces::affine({}, {0}), std::invalid_argument);
  CHECK_THROWS(Pieces::affine({{{at, 0, 1}}}, {}), std::invalid_argument);
  CHECK_THROWS(Pieces::affine({{{at, 0, 1}}}, std::vector<int64_t>(wire::kKeysMax + 1)),
               std::invalid_argument);
  CHECK_THROWS(Pieces::from_pointers({at}, {1, 2}, 1), std::invalid_argument);
  CHECK_THROWS(Pieces::from_pointers({at, at, at}, {1, 1, 1}, 2), std::invalid_argument);
  CHECK_THROWS(Pieces::from_pointers({at}, {1}, 0), std::invalid_argument);
}

TEST(an_entry_that_can_not_be_is_at_fault_alone) {
  uint8_t byte = 0;
  const uint64_t at = address_of(&byte);
  const auto faults = [](const Pieces& p) {
    std::vector<Status> all;
    for (size_t entry = 0; entry < p.entry_count(); ++entry) all.push_back(p.fault(entry));
    return all;
  };
  const uint64_t over = wire::kObjectBytesMax + 1ull;
  const Pieces pointers = Pieces::from_pointers({at, at, at, at, at, 0, at, at, UINT64_MAX, 0, at, 0, at, at},
                                                {1, 2, 0, 0, 3, 4, over, 0, 2, 0, UINT64_MAX, 2, 5, 0}, 2);
  CHECK(faults(pointers) ==
        std::vector<Status>({Status::kOk, Status::kBadRequest, Status::kBadRequest, Status::kTooLarge,
                             Status::kBadRequest, Status::kTooLarge, Status::kOk}));
  CHECK_EQ(pointers.total_bytes(), 3u + 5u);
  const Pieces shards =
      Pieces::affine({{{at, 0, 1}}, {}, {{at, 0, 0}}, {{at, 0, wire::kObjectBytesMax}, {at, 0, 1}}}, {0, 7});
  const std::vector<Status> one_key = {Status::kOk, Status::kBadRequest, Status::kBadRequest,
                                       Status::kTooLarge};
  std::vector<Status> two_keys = one_key;
  two_keys.insert(two_keys.end(), one_key.begin(), one_key.end());
  CHECK(faults(shards) == two_keys);
  CHECK_EQ(shards.total_bytes(), 2u);
  CHECK(faults(Pieces::affine({{{at, INT64_MAX, 1}}}, {0, 2})) ==
        std::vector<Status>({Status::kOk, Status::kBadRequest}));
  CHECK(faults(Pieces::affine({{{16, -1, 1}}}, {17, 15, 16})) ==
        std::vector<Status>({Status::kBadRequest, Status::kOk, Status::kBadRequest}));
  CHECK(faults(Pieces::affine({{{UINT64_MAX - 3, 0, 8}}}, {0})) ==
        std::vector<Status>({Status::kBadRequest}));
}

TEST(a_cursor_yields_every_byte_once_in_order_whatever_the_step) {
  std::vector<uint8_t> memory(4096);
  std::iota(memory.begin(), memory.end(), uint8_t{0});
  std::vector<uint64_t> pointers, sizes;
  std::vector<uint8_t> wanted;
  const std::vector<uint32_t> entries = {0, 2, 3, 6};
  for (size_t i = 0; i < 24; ++i) {
    pointers.push_back(address_of(memory.data() + (i * 613) % 3000));
    sizes.push_back(i % 3 == 1 ? 0 : i * 37 % 200 + 1);
  }
  const Pieces p = Pieces::from_pointers(pointers, sizes, 3);
  for (const uint32_t entry : entries)
    for (size_t j = 0; j < 3; ++j) {
      const iovec piece = p.piece(entry, j);
      wanted.insert(wanted.end(), static_cast<uint8_t*>(piece.iov_base),
                    static_cast<uint8_t*>(piece.iov_base) + piece.iov_len);
    }
  for (const size_t bytes_max : {1, 7, 100, 1 << 20})
    for (const size_t parts_max : {1, 2, 1000}) CHECK(gather(p, entries, bytes_max, parts_max) == wanted);
}

TEST_MAIN()
