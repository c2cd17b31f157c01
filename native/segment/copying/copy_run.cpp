#include "segment/copying/copy_run.hpp"

#include <algorithm>
#include <chrono>

#include "base/digest.hpp"
#include "segment/copying/object_copier.hpp"
#include "segment/extent_allocator.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr size_t kStepBytes = 256u << 10;  // hashed while they are still in the cache
// For memory of the pool that puts under way have.
constexpr auto kRoomWait = std::chrono::seconds(2);

template <typename T>
void append(std::vector<uint8_t>& to, const T& value) {
  const auto* p = reinterpret_cast<const uint8_t*>(&value);
  to.insert(to.end(), p, p + sizeof(value));
}

}  // namespace

CopyRun::Group::~Group() {
  if (store != nullptr) store->abandon_writes(writes);
}

CopyRun::CopyRun(SegmentStore& store, PutBatch& batch, const CopyOrder& order,
                 const std::atomic<bool>& cancelled)
    : store_(store),
      batch_(batch),
      order_(order),
      cancelled_(cancelled),
      share_(store.budgets().writing_bytes) {}

NetStatus CopyRun::run(FrameConnection& connection, const std::vector<uint32_t>& wanted,
                       const Deadline& deadline, CopyOutcome& outcome) {
  const auto set = [&](size_t object, Status status) {
    outcome.statuses[wanted[object]] = static_cast<uint8_t>(status);
  };
  fetch_codec::FetchRequest request;
  request.ns = order_.ns;
  request.bytes_max = ObjectCopier::kRunBytes;
  for (const uint32_t i : wanted) request.fingerprints.push_back(order_.fingerprints[i]);
  wire::Writer body(32 + wanted.size() * sizeof(Fingerprint));
  fetch_codec::write_request(body, request);
  uint32_t id = 0;
  NetStatus status = connection.send_request(wire::Op::kFetch, body.data(), body.size(), 0, deadline, &id);
  FrameReply reply;
  if (status == NetStatus::kOk)
    status = connection.receive_reply(wire::Op::kFetch, id, fetch_codec::fields_bytes_max(wanted.size()),
                                      deadline, &reply);
  std::vector<fetch_codec::FetchedObject> objects;
  try {
    if (status == NetStatus::kOk && reply.status != Status::kOk)
      status = NetStatus::kProtocol;
    else if (status == NetStatus::kOk)
      objects = fetch_codec::read_reply(reply, request);
  } catch (const wire::WireError&) {
    status = NetStatus::kProtocol;
  }
  if (status != NetStatus::kOk) return status;

  sort(objects);
  write_of_.assign(objects.size(), nullptr);
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i].status == Status::kTooLarge)
      left_.push_back(wanted[i]);
    else if (objects[i].status != Status::kOk)
      set(i, objects[i].status == Status::kMiss ? Status::kMiss : Status::kUnavailable);
  }
  for (Group& group : groups_) {
    reserve(group, deadline);
    for (size_t e = 0; e < group.objects.size(); ++e) write_of_[group.objects[e]] = &group.writes[e];
  }
  status = receive(connection, objects, deadline);
  if (status != NetStatus::kOk) return status;  // what was reserved goes with the groups
  for (Group& group : groups_) seal(group, wanted, outcome);
  return NetStatus::kOk;
}

CopyRun::Group& CopyRun::group_of(const fetch_codec::FetchedObject& object) {
  for (Group& group : groups_)
    if (group.put.block.pool == object.key.pool && group.shard == object.key.shard &&
        group.put.keep.intent == object.intent)
      return group;
  Group& group = groups_.emplace_back();
  group.shard = object.key.shard;
  group.put.block.pool = object.key.pool;
  group.put.keep.intent = object.intent;
  group.put.has_intent = object.intent != wire::Intent::kNormal;
  return group;
}

void CopyRun::sort(const std::vector<fetch_codec::FetchedObject>& objects) {
  for (size_t i = 0; i < objects.size(); ++i) {
    const fetch_codec::FetchedObject& o = objects[i];
    if (o.status != Status::kOk) continue;
    Group& group = group_of(o);
    group.hashes.insert(group.hashes.end(), o.key.hash.begin(), o.key.hash.end());
    append(group.lengths, o.length);
    append(group.depths, o.depth);
    group.put.texts.push_back(o.text);
    group.put.total_bytes += o.length;
    group.objects.push_back(static_cast<uint32_t>(i));
    bytes_ += o.length;
  }
  for (Group& group : groups_) {
    group.put.block.ns = order_.ns;
    group.put.block.shard_count = 1;
    group.put.block.key_count = static_cast<uint32_t>(group.objects.size());
    group.put.block.shards = group.shard.data();
    group.put.block.hashes = group.hashes.data();
    group.put.lengths = group.lengths.data();
    group.put.depths = group.depths.data();
    group.put.fingerprints = group.put.block.fingerprints();
    group.writes.resize(group.objects.size());
    group.store = &store_;
  }
}

void CopyRun::reserve(Group& group, const Deadline& deadline) {
  const auto until =
      SegmentStore::Clock::now() +
      std::min<SegmentStore::Clock::duration>(kRoomWait, std::chrono::milliseconds(deadline.left_ms()));
  uint64_t taken = 0;
  for (uint32_t e = 0; e < group.put.entry_count(); ++e)
    taken += ExtentAllocator::rounded(uint64_t{group.put.length(e)} + group.put.text(e).size());
  if (!share_.take(taken, until, cancelled_)) {
    for (WriteEntry& write : group.writes) write.status = Status::kUnavailable;
    return;
  }
  if (order_.may_evict)
    store_.reserve_writes(group.put, 0, group.put.entry_count(), until, cancelled_, group.writes, &batch_);
  else
    store_.reserve_in_free_room(group.put, group.writes, &batch_);
}

NetStatus CopyRun::receive(FrameConnection& connection,
                           const std::vector<fetch_codec::FetchedObject>& objects, const Deadline& deadline) {
  std::vector<uint8_t> unwanted;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i].status != Status::kOk) continue;
    WriteEntry& write = *write_of_[i];
    if (write.data == nullptr && unwanted.empty()) unwanted.resize(kStepBytes);
    for (uint64_t at = 0; at < objects[i].length;) {
      const size_t step = std::min<uint64_t>(objects[i].length - at, kStepBytes);
      uint8_t* const to = write.data != nullptr ? write.data + at : unwanted.data();
      iovec iov{to, step};
      const NetStatus status =
          deadline.expired() ? NetStatus::kTimeout : connection.receive_payload(&iov, 1, deadline);
      if (status != NetStatus::kOk) return status;
      write.digest = crc32c(write.digest, to, step);
      at += step;
    }
    write.digest_refused = objects[i].digest_alg != kDigestCrc32c || write.digest != objects[i].digest;
  }
  return NetStatus::kOk;
}

void CopyRun::seal(Group& group, const std::vector<uint32_t>& wanted, CopyOutcome& outcome) {
  seq_ = std::max(seq_, store_.seal_writes(group.put, group.writes));
  uint64_t copied = 0, copied_bytes = 0;
  SegmentStore::Statuses statuses(group.writes.size());
  for (uint32_t e = 0; e < group.writes.size(); ++e) {
    const Status status = group.writes[e].status;
    statuses[e] = outcome.statuses[wanted[group.objects[e]]] = static_cast<uint8_t>(status);
    if (status != Status::kOk) continue;
    ++copied;
    copied_bytes += group.put.length(e);
  }
  if (group.put.has_intent) store_.keep_stored(group.put.block, group.put.keep, statuses);
  outcome.copied_bytes += copied_bytes;
  store_.count_copied_in(copied, copied_bytes);
}

}  // namespace kvstore
