// A disk tier over pages that a test keeps as if they were in memory.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "segment/disk/disk_tier.hpp"
#include "segment/disk/memory_disk.hpp"
#include "segment/object_fixture.hpp"

namespace kvstore::testing {

constexpr uint64_t kDiskBytes = 4u << 20;  // 15 regions of 256 KiB

inline DiskTier::Page disk_page(const std::string& name, const NamespaceId& ns = kNs) {
  const Keys keys({name}, ns);
  return {keys.block().key(0), keys.block().fingerprints()[0]};
}

class PagesInMemory final : public DiskTierHooks {
 public:
  void put(const std::string& name, uint32_t length) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pages_[disk_page(name).fp.lo] = content(name, length);
  }
  void evict(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pages_.erase(disk_page(name).fp.lo);
  }
  std::multiset<uint64_t> gone() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return gone_;
  }

  uint64_t copy_out(const Key&, const Fingerprint& fp, uint8_t* to, uint64_t room,
                    DiskRecordHeader& header) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = pages_.find(fp.lo);
    if (it == pages_.end()) return 0;
    const auto& bytes = it->second;
    const std::string text = "text of " + std::to_string(bytes.size());
    if (bytes.size() + text.size() > room) return bytes.size() + text.size();
    std::memcpy(to, bytes.data(), bytes.size());
    std::memcpy(to + bytes.size(), text.data(), text.size());
    header.digest_alg = kDigestCrc32c;
    header.length = static_cast<uint32_t>(bytes.size());
    header.digest = crc32c(0, bytes.data(), bytes.size());
    header.depth = 7;
    header.text_bytes = static_cast<uint16_t>(text.size());
    return bytes.size() + text.size();
  }
  void dropped(std::vector<JournalEntry> pages) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const JournalEntry& page : pages) gone_.insert(page.fp.lo);
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::vector<uint8_t>> pages_;
  std::multiset<uint64_t> gone_;
};

enum class Got { kMiss, kRight, kWrong };

struct TierRig {
  explicit TierRig(const std::shared_ptr<DiskMedium>& on, uint32_t admit_uses = 1, uint32_t slow_ms = 60'000)
      : medium(on), tier(options(on, admit_uses, slow_ms), memory) {
    tier.start();
  }
  static DiskTierOptions options(const std::shared_ptr<DiskMedium>& on, uint32_t admit_uses,
                                 uint32_t slow_ms) {
    DiskTierOptions o;
    o.path = "in memory";
    o.capacity_bytes = kDiskBytes;
    o.admit_uses = admit_uses;
    o.slow_ms = slow_ms;
    o.open = opener(on);
    return o;
  }
  uint64_t stat(const std::string& name) {
    std::map<std::string, uint64_t> all;
    tier.stats(all);
    return all.at(name);
  }
  void note(const std::string& name) { tier.note({disk_page(name)}); }
  // Puts it, and waits until it is on disk.
  bool write(const std::string& name, uint32_t length) {
    memory.put(name, length);
    note(name);
    return comes([&] { return tier.lengths({disk_page(name)})[0] == length; });
  }
  Got get(const std::string& name, uint32_t length, int timeout_ms = 30'000) {
    const auto pages =
        tier.read({disk_page(name)}, DiskTier::Clock::now() + std::chrono::milliseconds(timeout_ms), kNever);
    if (pages[0].buffer == nullptr) return Got::kMiss;
    const auto expected = content(name, length);
    const std::string text = "text of " + std::to_string(length);
    const DiskRecordHeader& h = pages[0].header();
    const bool right = h.length == length && std::memcmp(pages[0].data(), expected.data(), length) == 0 &&
                       h.text_bytes == text.size() && h.depth == 7 &&
                       std::memcmp(pages[0].text(), text.data(), text.size()) == 0;
    return right ? Got::kRight : Got::kWrong;
  }

  std::shared_ptr<DiskMedium> medium;
  PagesInMemory memory;
  DiskTier tier;
};

}  // namespace kvstore::testing
