#include "segment/superblock.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/digest.hpp"

namespace kvstore {
namespace {

constexpr uint8_t kMagic[8] = {'K', 'V', 'S', 'P', 'O', 'O', 'L', '\n'};
constexpr uint32_t kFormatting = 0x464F524D;
constexpr uint32_t kWhole = 0x57484F4C;

// Up to `check` it is written once; what follows changes, and has a check of its own.
struct Page {
  uint8_t magic[8];
  uint32_t format;
  uint32_t state;
  PoolId pool_id;
  SegmentId segment_id;
  BootId boot_id;
  uint64_t device;
  uint64_t inode;
  PoolShape shape;
  uint32_t check;  // over what stands before it, as if the state were kWhole
  uint32_t cluster_check;
  ClusterId cluster_id;
};
static_assert(sizeof(Page) <= Superblock::kBytes);
static_assert(offsetof(Page, format) == 8 && offsetof(Page, state) == 12, "of every format");

// The compiler keeps the order, and whoever finds the memory of a killed process sees it in order.
void order_writes() { std::atomic_thread_fence(std::memory_order_release); }

Page copy_of(const uint8_t* page) {
  Page out;
  std::memcpy(&out, page, sizeof(out));
  return out;
}

uint32_t check_of(Page page) {
  page.state = kWhole;
  return crc32c(0, &page, offsetof(Page, check));
}

uint32_t check_of(const ClusterId& cluster_id) {
  return crc32c(0x43495553, cluster_id.data(), cluster_id.size());
}

std::string in_words(const PoolShape& shape) {
  return std::to_string(shape.capacity_bytes) + " bytes for objects (" + std::to_string(shape.map_bytes) +
         " in all, " + std::to_string(shape.journal_entries) + " journal entries)";
}

}  // namespace

bool PoolShape::operator==(const PoolShape& o) const {
  return map_bytes == o.map_bytes && capacity_bytes == o.capacity_bytes && table_offset == o.table_offset &&
         data_offset == o.data_offset && journal_offset == o.journal_offset &&
         journal_entries == o.journal_entries && slot_bytes == o.slot_bytes && slot_version == o.slot_version;
}

BootId current_boot_id() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fopen("/proc/sys/kernel/random/boot_id", "re"),
                                                   &::fclose);
  if (file == nullptr)
    throw std::system_error(errno, std::generic_category(), "reading /proc/sys/kernel/random/boot_id");
  BootId id{};
  size_t digits = 0;
  for (int c = ::fgetc(file.get()); c != EOF && digits < 2 * id.size(); c = ::fgetc(file.get())) {
    const char* const hex = "0123456789abcdef";
    const void* const found = c == 0 ? nullptr : std::memchr(hex, c, 16);
    if (found == nullptr) continue;  // its dashes
    const auto value = static_cast<uint8_t>(static_cast<const char*>(found) - hex);
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | value);
    ++digits;
  }
  return id;
}

void Superblock::begin_format(const PoolId& pool_id, const SegmentId& segment_id, const PoolShape& shape,
                              const FileIdentity& file) noexcept {
  Page page{};
  std::memcpy(page.magic, kMagic, sizeof(kMagic));
  page.format = kFormat;
  page.state = kFormatting;
  page.pool_id = pool_id;
  page.segment_id = segment_id;
  page.boot_id = current_boot_id();
  page.device = file.device;
  page.inode = file.inode;
  page.shape = shape;
  page.check = check_of(page);
  page.cluster_check = check_of(page.cluster_id);
  std::memcpy(page_, &page, sizeof(page));
  order_writes();
}

void Superblock::end_format() noexcept {
  order_writes();
  __atomic_store_n(reinterpret_cast<uint32_t*>(page_ + offsetof(Page, state)), kWhole, __ATOMIC_RELEASE);
}

PoolId Superblock::pool_id() const { return copy_of(page_).pool_id; }

PoolShape Superblock::shape() const { return copy_of(page_).shape; }

ClusterId Superblock::cluster_id() const { return copy_of(page_).cluster_id; }

void Superblock::set_cluster_id(const ClusterId& cluster_id) noexcept {
  std::memcpy(page_ + offsetof(Page, cluster_id), cluster_id.data(), cluster_id.size());
  order_writes();
  __atomic_store_n(reinterpret_cast<uint32_t*>(page_ + offsetof(Page, cluster_check)), check_of(cluster_id),
                   __ATOMIC_RELEASE);
}

Superblock::Judgement Superblock::judge(const uint8_t* page, const Expected& expected) {
  const auto empty = [](const char* why) { return Judgement{Verdict::kEmpty, why}; };
  const auto refused = [](const std::string& why) { return Judgement{Verdict::kRefused, why}; };
  const Page said = copy_of(page);
  if (is_blank(page)) return empty("the process that made it died before it had written anything");
  if (is_damaged(page) && said.segment_id == expected.segment_id) return empty("its first page is damaged");
  if (!has_magic(page))
    return refused(
        "is not a pool of kvstore, or one whose first page is damaged: move it away or remove it, which "
        "costs "
        "warm pages only if it is one, or choose another pool_path");
  if (said.format > kFormat)
    return refused(
        "has format " + std::to_string(said.format) + ", and this release reads format " +
        std::to_string(kFormat) +
        ": a later release of kvstore has written it. Run that release, or empty it with --empty-pool");
  if (said.state == kFormatting) return empty("the process that made it died before it was whole");
  if (said.format < kFormat)
    return empty("an earlier release has written it in a format that this one does not read");
  // Without its cluster its pages are nobody's: elsewhere they might be those of an epoch that has ended.
  if (said.state != kWhole || said.check != check_of(said) || said.cluster_check != check_of(said.cluster_id))
    return empty("its first page is damaged");
  if (said.boot_id != expected.boot_id) return empty("the machine has been restarted since it was written");
  if (said.device != expected.file.device || said.inode != expected.file.inode)
    return empty("it is a copy of another pool file");
  if (said.segment_id != expected.segment_id)
    return refused(
        "is the pool of another segment: give each segment its own data_dir and pool_path, or empty it with "
        "--empty-pool");
  if (!(said.shape == expected.shape))
    return refused("has room for " + in_words(said.shape) + ", and the settings make it " +
                   in_words(expected.shape) + ": set capacity as it was, or empty it with --empty-pool");
  return {Verdict::kWarm, ""};
}

bool Superblock::has_magic(const uint8_t* page) { return std::memcmp(page, kMagic, sizeof(kMagic)) == 0; }

bool Superblock::is_damaged(const uint8_t* page) {
  Page said = copy_of(page);
  if (has_magic(page) && said.format == kFormat) return false;
  std::memcpy(said.magic, kMagic, sizeof(kMagic));
  said.format = kFormat;
  return said.check == check_of(said);
}

bool Superblock::is_blank(const uint8_t* page) {
  return std::all_of(page, page + kBytes, [](uint8_t byte) { return byte == 0; });
}

uint64_t Superblock::capacity_bytes(const uint8_t* page) {
  const Page said = copy_of(page);
  const bool whole =
      has_magic(page) && said.format == kFormat && said.state == kWhole && said.check == check_of(said);
  return whole ? said.shape.capacity_bytes : 0;
}

}  // namespace kvstore
