// A call on its way: what it is about, its answers, and the namespace it runs in. Each verb is a class of its
// own.
//
// One call, one thread: nothing here is thread-safe, except that transports write the statuses of different
// entries at once.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cluster.hpp"
#include "client/pieces.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

class PageCall {
 public:
  virtual ~PageCall() = default;
  PageCall(const PageCall&) = delete;
  PageCall& operator=(const PageCall&) = delete;

  // Answers each of its entries, in the open namespace, and once more in the reopened one when that turns out
  // to be stale.
  void run(int handle);

 protected:
  // `statuses`: one an entry of `keys`; the call writes those of `entries` (ascending) only.
  PageCall(Cluster& cluster, const KeyBlock& keys, std::vector<uint32_t> entries, const Deadline& deadline,
           uint8_t* statuses)
      : cluster_(cluster),
        keys_(keys),
        entries_(std::move(entries)),
        deadline_(deadline),
        statuses_(statuses) {}

  enum class Attempt : uint8_t { kDone, kStaleNamespace };
  // The whole call, retries at other segments included, in the namespace of keys(). Entries are UNAVAILABLE
  // at first.
  virtual Attempt attempt() = 0;

  Cluster& cluster() { return cluster_; }
  const KeyBlock& keys() const { return keys_; }
  const std::vector<uint32_t>& entries() const { return entries_; }
  const Deadline& deadline() const { return deadline_; }
  // Of all entries of keys(), in its namespace.
  const std::vector<Fingerprint>& fingerprints() const { return fingerprints_; }

  wire::Status status(uint32_t entry) const { return static_cast<wire::Status>(statuses_[entry]); }
  void set(uint32_t entry, wire::Status status) { statuses_[entry] = static_cast<uint8_t>(status); }
  void set(const std::vector<uint32_t>& entries, wire::Status status) {
    for (const uint32_t entry : entries) set(entry, status);
  }
  bool any_stale(const std::vector<uint32_t>& entries) const;

  // Where this client knows each entry to be; those it does not know keep their place in *where.
  void recall(const std::vector<uint32_t>& entries, std::vector<ObjectLocation>* where);
  void remember(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where);
  // Of the entries recalled, those that were not there.
  void forget(const std::vector<uint32_t>& entries);
  // Asks the directory.
  wire::Status locate(const std::vector<uint32_t>& entries, const Deadline& deadline,
                      std::vector<ObjectLocation>* where);
  // What a call that can do without the directory asks it all the same now and then: `entries` is what it asks for
  // anyway, `recalled` what it knows. Asking for any entry shows whether the namespace is current, and the map.
  std::vector<uint32_t> entries_to_ask(const std::vector<uint32_t>& unknown,
                                       const std::vector<uint32_t>& recalled) const;
  // The part of the deadline that the directory may take where the answers for other entries don't depend on it.
  Deadline directory_deadline(const std::vector<uint32_t>& unknown,
                              const std::vector<uint32_t>& recalled) const;
  // The directory has answered in this call's namespace.
  void confirm_namespace() { cluster_.namespaces().confirm(handle_, keys_.ns); }

  // A batch that writes this call's statuses.
  TransportBatch batch(BatchKind kind) const;

 private:
  Cluster& cluster_;
  KeyBlock keys_;
  const std::vector<uint32_t> entries_;
  const Deadline deadline_;
  uint8_t* const statuses_;
  std::vector<Fingerprint> fingerprints_;
  int handle_ = -1;
};

// The entries of which a location is known, or not.
std::vector<uint32_t> located(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
                              bool wanted = true);

std::vector<uint32_t> all_entries(const KeyBlock& keys);
// All entries but those whose memory can't be used: each of these has its own answer at once.
std::vector<uint32_t> sound_entries(const Pieces& memory, uint8_t* statuses);

}  // namespace kvstore
