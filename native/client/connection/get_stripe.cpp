#include "client/connection/get_stripe.hpp"

#include <deque>

#include "base/digest.hpp"
#include "client/connection/disk_wait.hpp"
#include "client/connection/run_sender.hpp"
#include "protocol/data_codec.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

// Requests in flight on a connection, bounded for the same reasons as kPutWindow.
constexpr size_t kGetWindow = 2;

}  // namespace

NetStatus GetStripe::run() {
  std::deque<uint32_t> request_ids;
  size_t sent = 0;
  for (size_t received = 0; received < runs_.size(); ++received) {
    NetStatus status = NetStatus::kOk;
    for (; sent < runs_.size() && sent - received < kGetWindow && status == NetStatus::kOk; ++sent) {
      request_ids.emplace_back();
      status = request(runs_[sent], &request_ids.back());
    }
    if (status != NetStatus::kOk) {
      fail(received, status);
      return status;
    }
    status = receive(runs_[received], request_ids.front());
    request_ids.pop_front();
    if (status != NetStatus::kOk) {
      fail(received + 1, status);
      return status;
    }
  }
  return NetStatus::kOk;
}

void GetStripe::fail(size_t first_run, NetStatus status) {
  for (size_t i = first_run; i < runs_.size(); ++i)
    for (const uint32_t entry : runs_[i].entries(batch_.keys->shard_count))
      batch_.set_status(entry, entry_status(status));
}

NetStatus GetStripe::request(const EntryRun& run, uint32_t* request_id) {
  const std::vector<uint32_t> lengths = entry_lengths(run.entries(batch_.keys->shard_count), *batch_.memory);
  wire::Writer body(128 + run.key_count() * kHashBytes + lengths.size() * sizeof(uint32_t));
  body.u32(disk_wait_ms(deadline_)).u32(0);
  write_run(body, *batch_.keys, run);
  body.raw(lengths.data(), lengths.size() * sizeof(uint32_t));
  return connection_.send_request(Op::kGet, body.data(), body.size(), 0, deadline_, request_id);
}

NetStatus GetStripe::receive(const EntryRun& run, uint32_t request_id) {
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  FrameReply reply;
  NetStatus status = connection_.receive_reply(
      Op::kGet, request_id, data_codec::kStatusesHeadBytes + entries.size() * data_codec::kGetEntryBytes,
      deadline_, &reply);
  if (status == NetStatus::kOk && reply.status != Status::kOk && reply.payload_bytes == 0) {
    for (const uint32_t entry : entries)
      batch_.set_status(entry, data_codec::known_status(unsigned(reply.status)));
    return NetStatus::kOk;
  }
  if (status == NetStatus::kOk && reply.status != Status::kOk)
    status = NetStatus::kProtocol;  // a refusal with pages
  std::vector<data_codec::GetAnswer> answers;
  try {
    if (status == NetStatus::kOk)
      answers = data_codec::read_get_reply(reply, entry_lengths(entries, *batch_.memory));
  } catch (const wire::WireError&) {
    status = NetStatus::kProtocol;
  }
  if (status != NetStatus::kOk) {
    for (const uint32_t entry : entries) batch_.set_status(entry, entry_status(status));
    return status;
  }
  Wanted wanted;
  for (size_t i = 0; i < entries.size(); ++i) {
    batch_.set_status(entries[i], answers[i].status);
    if (answers[i].status != Status::kOk) continue;
    batch_.set_status(entries[i], Status::kUnavailable);  // until all its bytes are here
    wanted.entries.push_back(entries[i]);
    wanted.digests.push_back(answers[i].digest);
  }
  return scatter(wanted);
}

NetStatus GetStripe::scatter(const Wanted& wanted) {
  PieceCursor cursor(*batch_.memory, wanted.entries);
  std::vector<PieceCursor::Part> parts;
  std::vector<iovec> iov;
  size_t bytes = 0, ordinal = 0;
  uint64_t entry_received = 0;
  uint32_t crc = 0;
  while (cursor.next(kStepBytes, kStepPartsMax, &parts, &bytes)) {
    const bool packed = worth_packing(parts.size(), bytes);
    iov.clear();
    if (packed) {
      staging_.resize(kStepBytes);
      iov.push_back({staging_.data(), bytes});
    } else {
      for (const auto& part : parts) iov.push_back({part.data, part.size});
    }
    const NetStatus status = deadline_.expired()
                                 ? NetStatus::kTimeout
                                 : connection_.receive_payload(iov.data(), iov.size(), deadline_);
    if (status != NetStatus::kOk) {
      for (size_t i = ordinal; i < wanted.entries.size(); ++i)
        batch_.set_status(wanted.entries[i], entry_status(status));
      return status;
    }
    const uint8_t* from = staging_.data();
    for (const auto& part : parts) {
      crc = packed ? copy_crc32c(crc, part.data, from, part.size) : crc32c(crc, part.data, part.size);
      from += packed ? part.size : 0;
      entry_received += part.size;
      const uint32_t entry = wanted.entries[ordinal];
      if (entry_received < batch_.memory->entry_bytes(entry)) continue;
      const bool intact = crc == wanted.digests[ordinal];
      batch_.set_status(entry, intact ? Status::kOk : Status::kDigestMismatch);
      if (!intact) counters_.add(Counter::kDigestMismatches);
      ++ordinal;
      entry_received = 0;
      crc = 0;
    }
    moved_.add(bytes);
  }
  return NetStatus::kOk;
}

}  // namespace kvstore
