#include "client/connection/run_sender.hpp"

#include "base/digest.hpp"

namespace kvstore {

using wire::Op;

std::vector<uint32_t> entry_lengths(const std::vector<uint32_t>& entries, const Pieces& memory) {
  std::vector<uint32_t> lengths(entries.size());
  for (size_t i = 0; i < entries.size(); ++i)
    lengths[i] = static_cast<uint32_t>(memory.entry_bytes(entries[i]));
  return lengths;
}

NetStatus SocketRunSender::send(FrameConnection& connection, const EntryRun& run,
                                const data_codec::PutFields& fields, const Deadline& deadline, Op* op,
                                uint32_t* request_id) {
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch_.memory);
  wire::Writer body(256 + run.key_count() * (kHashBytes + 8) + lengths.size() * sizeof(uint32_t));
  data_codec::write_put(body, *batch_.keys, run, fields, lengths);
  *op = Op::kPut;
  NetStatus status = connection.send_request(
      *op, body.data(), body.size(), run.bytes + entries.size() * sizeof(uint32_t), deadline, request_id);
  std::vector<uint32_t> digests(entries.size(), 0);
  std::vector<uint8_t> staging;
  PieceCursor cursor(*batch_.memory, entries);
  std::vector<PieceCursor::Part> parts;
  std::vector<iovec> iov;
  size_t bytes = 0;
  while (status == NetStatus::kOk && cursor.next(kStepBytes, kStepPartsMax, &parts, &bytes)) {
    iov.clear();
    if (worth_packing(parts.size(), bytes)) {
      staging.resize(kStepBytes);
      uint8_t* to = staging.data();
      for (const auto& part : parts) {
        digests[part.ordinal] = copy_crc32c(digests[part.ordinal], to, part.data, part.size);
        to += part.size;
      }
      iov.push_back({staging.data(), bytes});
    } else {
      for (const auto& part : parts) {
        digests[part.ordinal] = crc32c(digests[part.ordinal], part.data, part.size);
        iov.push_back({part.data, part.size});
      }
    }
    status = deadline.expired() ? NetStatus::kTimeout
                                : connection.send_bytes(iov.data(), iov.size(), deadline, true);
    moved_.add(bytes);
  }
  if (status != NetStatus::kOk) return status;
  iovec trailer{digests.data(), digests.size() * sizeof(uint32_t)};
  return connection.send_bytes(&trailer, 1, deadline, false);
}

}  // namespace kvstore
