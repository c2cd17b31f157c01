#include "client/connection/put_stripe.hpp"

#include <deque>

#include "client/connection/covering_commit.hpp"
#include "protocol/data_codec.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

struct Sent {
  Op op;
  uint32_t request_id;
};

NetStatus receive(FrameConnection& connection, const Sent& sent, const std::vector<uint32_t>& entries,
                  const Deadline& deadline, CoveringCommit* commit, ClientCounters& counters) {
  FrameReply reply;
  const NetStatus status = connection.receive_reply(
      sent.op, sent.request_id, data_codec::kStatusesHeadBytes + entries.size() + data_codec::kPutTailBytes,
      deadline, &reply);
  if (status != NetStatus::kOk) return status;
  data_codec::PutAnswer answer;
  try {
    if (reply.status == Status::kOk || reply.status == Status::kNotCommitted)
      answer = data_codec::read_put_reply(reply, entries.size());
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  counters.add(Counter::kKeepRefused, answer.not_kept);
  commit->answer(entries, reply.status, answer);
  return NetStatus::kOk;
}

}  // namespace

NetStatus put_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                     const Deadline& deadline, RunSender& sender, CoveringCommit& commit,
                     ClientCounters& counters) {
  std::deque<Sent> window;
  const auto receive_one = [&] {
    const std::vector<uint32_t> entries = runs[commit.answered()].entries(batch.keys->shard_count);
    const NetStatus status = receive(connection, window.front(), entries, deadline, &commit, counters);
    if (status == NetStatus::kOk) window.pop_front();
    return status;
  };

  NetStatus status = sender.prepare(connection, deadline);
  for (size_t i = 0; i < runs.size() && status == NetStatus::kOk; ++i) {
    if (window.size() == kPutWindow) status = receive_one();
    if (status != NetStatus::kOk) break;
    data_codec::PutFields fields;
    fields.head.ack_committed = commit.asked_by(i);
    fields.head.commit_timeout_ms = commit_timeout_ms(deadline);
    fields.depth = batch.depth;
    fields.texts = batch.texts;
    if ((connection.features() & wire::kFeatureKeep) != 0)
      fields.keep = batch.wish;
    else if (batch.wish.intent != wire::Intent::kNormal)
      counters.add(Counter::kKeepUnsupported, runs[i].entry_count());
    window.emplace_back();
    status = sender.send(connection, runs[i], fields, deadline, &window.back().op, &window.back().request_id);
  }
  while (status == NetStatus::kOk && commit.answered() < runs.size()) status = receive_one();

  for (size_t i = commit.answered(); i < runs.size(); ++i)
    for (const uint32_t entry : runs[i].entries(batch.keys->shard_count))
      batch.set_status(entry, entry_status(status));
  return status;
}

NetStatus commit_journal(FrameConnection& connection, uint64_t journal_seq, const Deadline& deadline,
                         bool* durable) {
  *durable = false;
  wire::Writer body(16);
  body.u64(journal_seq).u32(commit_timeout_ms(deadline)).u32(0);
  uint32_t id = 0;
  FrameReply reply;
  NetStatus status = connection.send_request(Op::kCommit, body.data(), body.size(), 0, deadline, &id);
  if (status == NetStatus::kOk) status = connection.receive_reply(Op::kCommit, id, 0, deadline, &reply);
  *durable = status == NetStatus::kOk && reply.status == Status::kOk;
  return status;
}

}  // namespace kvstore
