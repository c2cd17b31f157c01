#include "client/calls/exists_call.hpp"

#include <algorithm>

namespace kvstore {
namespace {

using wire::Status;

// With more segments than this most guesses would be wrong, and with more entries they would hold up the segments for
// longer than a round trip takes.
constexpr size_t kGuessSegmentsMax = 2;
constexpr size_t kGuessEntriesMax = 1024;
// Of what is left of a call, what a silent segment may take of a guess: who really has the page is asked after it.
constexpr int64_t kGuessShare = 2;

}  // namespace

TransportBatch ExistsCall::pin_batch() const {
  TransportBatch pin = batch(BatchKind::kPin);
  pin.pin_ms = pin_ms_;
  return pin;
}

std::vector<uint32_t> ExistsCall::not_ok(const std::vector<uint32_t>& entries) const {
  std::vector<uint32_t> some;
  for (const uint32_t entry : entries)
    if (status(entry) != Status::kOk) some.push_back(entry);
  return some;
}

ExistsCall::Attempt ExistsCall::ask_directory() {
  std::vector<ObjectLocation> where(entries().size());
  recall(entries(), &where);
  const std::vector<uint32_t> recalled = located(entries(), where);
  std::vector<uint8_t> found;
  const Status status = cluster().directory().exists(keys().ns, fingerprints(),
                                                     directory_deadline(entries(), recalled), &found);
  if (status == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (status == Status::kOk) {
    confirm_namespace();
    for (const uint32_t entry : entries()) set(entry, found[entry] != 0 ? Status::kOk : Status::kMiss);
    return Attempt::kDone;
  }
  set(entries(), status);
  cluster().counters().add(Counter::kLocationsUsed, recalled.size());
  ReplicaChoice replicas(cluster(), entries().size());
  const Attempt outcome = pin(recalled, &where, &replicas);
  cluster().counters().add(Counter::kLocationsWithoutDirectory, recalled.size() - not_ok(recalled).size());
  return outcome;
}

ExistsCall::Attempt ExistsCall::confirm_and_pin() {
  std::vector<ObjectLocation> where(entries().size());
  recall(entries(), &where);
  const std::vector<uint32_t> recalled = located(entries(), where),
                              unknown = located(entries(), where, false);
  const std::vector<uint32_t> asked = entries_to_ask(unknown, recalled);
  cluster().counters().add(Counter::kLocationsUsed, recalled.size());
  ReplicaChoice replicas(cluster(), entries().size());
  Guesses guesses;
  Status looked_up = pin_and_locate(recalled, unknown, asked, &where, &replicas, &guesses);
  if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  std::vector<uint32_t> pending = take_answers(unknown, looked_up, guesses, &where);

  if (std::vector<uint32_t> moved = not_ok(recalled); !moved.empty()) {
    std::vector<uint32_t> missing;
    for (const uint32_t entry : moved)
      if (status(entry) == Status::kMiss) missing.push_back(entry);
    forget(missing);
    if (looked_up == Status::kOk) looked_up = locate(moved, deadline(), &where);
    if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
    if (looked_up == Status::kOk) {
      for (const uint32_t entry : moved)
        if (!where[entry].known()) set(entry, Status::kMiss);
      const std::vector<uint32_t> elsewhere = located(moved, where);
      pending.insert(pending.end(), elsewhere.begin(), elsewhere.end());
      std::sort(pending.begin(), pending.end());
    }
  }
  if (pin(pending, &where, &replicas) == Attempt::kStaleNamespace) return Attempt::kStaleNamespace;
  if (looked_up != Status::kOk)
    cluster().counters().add(Counter::kLocationsWithoutDirectory, recalled.size() - not_ok(recalled).size());
  std::vector<uint32_t> confirmed;
  for (const uint32_t entry : entries())
    if (status(entry) == Status::kOk) confirmed.push_back(entry);
  remember(confirmed, where);
  return Attempt::kDone;
}

Status ExistsCall::pin_and_locate(const std::vector<uint32_t>& recalled, const std::vector<uint32_t>& unknown,
                                  const std::vector<uint32_t>& asked, std::vector<ObjectLocation>* where,
                                  ReplicaChoice* replicas, Guesses* guesses) {
  std::vector<Cluster::Part> parts;
  // What nobody can be asked for is looked up again afterwards.
  replicas->parts(recalled, *where, pin_batch(), deadline(), &parts);
  const auto recalled_parts = static_cast<ptrdiff_t>(parts.size());
  if (!unknown.empty() && unknown.size() <= kGuessEntriesMax && cluster().guesses().worth_it()) {
    const auto peers = cluster().peers().all();
    const auto usable = [](const auto& peer) { return peer.second->readable() && peer.second->usable(); };
    const auto count = static_cast<size_t>(std::count_if(peers.begin(), peers.end(), usable));
    for (const auto& peer : peers) {
      if (count > kGuessSegmentsMax || !usable(peer)) continue;
      std::vector<uint8_t>& answers = (*guesses)[peer.first];
      answers.assign(entries().size(), static_cast<uint8_t>(Status::kUnavailable));
      parts.push_back({peer.second, pin_batch(), peer.first});
      parts.back().stall_ms = static_cast<int>(std::max<int64_t>(deadline().left_ms() / kGuessShare, 1));
      parts.back().batch.statuses = answers.data();
      parts.back().batch.entries = unknown;
    }
  }
  Status looked_up = Status::kOk;
  std::vector<ObjectLocation> answer(entries().size());
  const auto look_up = [&] {
    looked_up = Status::kInternal;  // unless it gets to its end
    looked_up = locate(asked, directory_deadline(unknown, recalled), &answer);
  };
  if (asked.empty())
    cluster().submit(parts, deadline());
  else
    cluster().submit_beside(parts, deadline(), look_up);
  parts.erase(parts.begin() + recalled_parts,
              parts.end());  // whoever was guessed is not known to be a holder
  replicas->asked(parts);
  for (const uint32_t entry : unknown) (*where)[entry] = answer[entry];
  return looked_up;
}

std::vector<uint32_t> ExistsCall::take_answers(const std::vector<uint32_t>& unknown, Status looked_up,
                                               const Guesses& guesses, std::vector<ObjectLocation>* where) {
  std::vector<uint32_t> pending;
  size_t found = 0, guessed = 0;
  for (const uint32_t entry : unknown) {
    ObjectLocation& holders = (*where)[entry];
    set(entry, looked_up == Status::kOk ? Status::kMiss : looked_up);
    if (looked_up != Status::kOk || !holders.known()) continue;
    ++found;
    set(entry, Status::kUnavailable);
    for (const uint32_t segment : holders.segments) {
      const auto answers = guesses.find(segment);
      if (answers == guesses.end() || answers->second[entry] != static_cast<uint8_t>(Status::kOk)) continue;
      set(entry, Status::kOk);
      if (holders.segments[0] != segment) std::swap(holders.segments[0], holders.segments[1]);
      break;
    }
    if (status(entry) == Status::kOk)
      ++guessed;
    else
      pending.push_back(entry);
  }
  cluster().counters().add(Counter::kExistsGuessed, guessed);
  if (looked_up == Status::kOk && !unknown.empty()) cluster().guesses().learn(found, unknown.size());
  return pending;
}

ExistsCall::Attempt ExistsCall::pin(std::vector<uint32_t> pending, std::vector<ObjectLocation>* where,
                                    ReplicaChoice* replicas) {
  while (!pending.empty() && !deadline().expired()) {
    std::vector<Cluster::Part> parts;
    // What has no holder left keeps its last answer.
    replicas->parts(pending, *where, pin_batch(), deadline(), &parts);
    if (parts.empty()) break;
    cluster().submit(parts, deadline());
    replicas->asked(parts);
    pending.clear();
    for (const Cluster::Part& part : parts)
      for (const uint32_t entry : part.batch.entries) {
        ObjectLocation& holders = (*where)[entry];
        if (status(entry) != Status::kOk)
          pending.push_back(entry);
        else if (holders.segments[0] != part.segment)
          std::swap(holders.segments[0], holders.segments[1]);  // a get goes to where the pin is
      }
    if (any_stale(pending)) return Attempt::kStaleNamespace;
    std::sort(pending.begin(), pending.end());
  }
  return Attempt::kDone;
}

}  // namespace kvstore
