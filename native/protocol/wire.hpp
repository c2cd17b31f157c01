// Frame format, codes and caps of both framed ports, and a bounds-checked reader / appending writer for bodies.
//
// The byte-by-byte specification is docs/protocol.md; tests/vectors/protocol_v2.json pins it. Nothing here does IO.
// All functions are thread-safe on distinct objects. Multi-byte fields are little-endian on the wire; the memcpy based
// accessors below assume a little-endian CPU, which is asserted at compile time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvstore {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire codec copies fields as they lie in memory");

namespace wire {

constexpr uint32_t kMagic = 0x3153564B;  // "KVS1"
// Of the protocol, agreed on in HELLO. 2: fingerprints are made of the whole page hash.
constexpr uint8_t kVersionMin = 2;
constexpr uint8_t kVersionMax = 2;
// Of the form of frames, in each header: peers of all protocol versions can read each other's HELLO, and refuse it.
constexpr uint8_t kFrameVersion = 1;
constexpr size_t kHeaderBytes = 24;
constexpr size_t kReplyPrefixBytes = 16;
constexpr uint16_t kFlagReply = 1;

// Caps: checked before anything is allocated.
constexpr uint32_t kBodyBytesMax = 16u << 20;
constexpr uint32_t kHelloBodyBytesMax = 4096;
constexpr uint64_t kPayloadBytesMax = 2ull << 30;
constexpr uint32_t kKeysMax = 65536;
constexpr uint32_t kEntriesMax = 131072;
constexpr uint32_t kShardsMax = 64;
constexpr uint32_t kAvoidedMax = 64;  // segments that a PLACE names
constexpr uint32_t kReplicasMax = 4;  // copies of an object that LOOKUP names and PLACE asks for
constexpr uint32_t kObjectBytesMax = 1u << 30;
constexpr uint32_t kTextBytesMax = 256;
constexpr uint32_t kTokenBytesMax = 1024;
constexpr uint32_t kNameBytesMax = 255;
constexpr uint32_t kIdentityBytesMax = 64u << 10;
constexpr uint32_t kPullPiecesMax = 2u << 20;
constexpr uint32_t kPinMsMax = 60000;
constexpr uint32_t kKeepTtlMsMax = 24u * 60 * 60 * 1000;
constexpr uint32_t kFetchEntriesMax = 1024;
constexpr uint32_t kKeepTtlMsDefault = 30u * 60 * 1000;  // what a TTL of 0 stands for

constexpr uint32_t kNoSegment = 0xFFFFFFFFu;
constexpr uint32_t kAlreadyThere = 0xFFFFFFFEu;
constexpr uint32_t kOtherLength = 0xFFFFFFFDu;

// Transports with ops of their own declare them where they are; docs/protocol.md has the numbers of all.
enum class Op : uint8_t {
  kHello = 1,
  kOpenNamespace = 2,
  kMap = 3,
  kExists = 4,
  kLookup = 5,
  kPlace = 6,
  kBumpNamespace = 7,
  kPin = 16,
  kLocate = 17,
  kGet = 18,
  kPut = 19,
  kUnpin = 20,
  kRemove = 21,
  kAttach = 22,
  kRegister = 23,
  kUnregister = 24,
  kPull = 25,
  kSuspect = 26,
  kCommit = 29,
  kKeep = 30,
  kFetch = 31,
  kLink = 32,
  kJournal = 33,
  kInventory = 34,
  kHeartbeat = 35,
  kAck = 36,
  kRequestInventory = 37,
  kEntriesRefused = 38,
};

enum class Status : uint8_t {
  kOk = 0,
  kMiss = 1,
  kExists = 2,
  kNoSpace = 3,
  kConflict = 4,
  kDigestMismatch = 5,
  kNotCommitted = 6,
  kStaleNamespace = 7,
  kTimeout = 8,
  kUnavailable = 9,
  kBadRequest = 10,
  kUnsupportedVersion = 11,
  kUnauthorized = 12,
  kTooLarge = 13,
  kLengthMismatch = 14,
  kInternal = 15,
  kNotLeader = 16,
  kWrongPeer = 17,
};

enum class Role : uint8_t { kClient = 1, kSegment = 2, kTool = 3 };
constexpr uint32_t kFeatureUnix = 1;
constexpr uint32_t kFeatureCommit = 4;
constexpr uint32_t kFeatureKeep = 8;
constexpr uint32_t kFeatureFetch = 16;

enum class SegmentState : uint8_t { kLive = 1, kSuspect = 2, kDraining = 3, kGone = 4 };

constexpr uint8_t kPutHasDepths = 1;
constexpr uint8_t kPutHasTexts = 2;
constexpr uint8_t kPutHasDigests = 4;  // PULL over the unix socket; over RDMA they are always there
constexpr uint8_t kPutHasIntent = 8;

// What a writer wants to become of objects when space runs short. A hint: no answer depends on it.
enum class Intent : uint8_t { kNormal = 0, kRetain = 1, kDemote = 2 };
struct KeepWish {
  Intent intent = Intent::kNormal;
  uint32_t ttl_ms = 0;  // of a retention; 0: kKeepTtlMsDefault, at most kKeepTtlMsMax
};
constexpr size_t kKeepWishBytes = 8;

struct Header {
  uint32_t magic = kMagic;
  uint8_t version = kFrameVersion;
  uint8_t op = 0;
  uint16_t flags = 0;
  uint32_t request_id = 0;
  uint32_t body_bytes = 0;
  uint64_t payload_bytes = 0;

  bool is_reply() const { return (flags & kFlagReply) != 0; }
};

// A body that is too short, a count over its cap, or a header that is not ours. `status` is what to answer.
class WireError : public std::runtime_error {
 public:
  WireError(Status status_in, const std::string& what) : std::runtime_error(what), status(status_in) {}
  Status status;
};

inline void encode_header(const Header& h, uint8_t out[kHeaderBytes]) {
  std::memcpy(out + 0, &h.magic, 4);
  out[4] = h.version;
  out[5] = h.op;
  std::memcpy(out + 6, &h.flags, 2);
  std::memcpy(out + 8, &h.request_id, 4);
  std::memcpy(out + 12, &h.body_bytes, 4);
  std::memcpy(out + 16, &h.payload_bytes, 8);
}

// Throws WireError when the header can't be a frame of ours; the connection is then beyond repair.
Header decode_header(const uint8_t in[kHeaderBytes]);

// Reads fields of a body in order; every read is bounds-checked and throws WireError(kBadRequest).
class Reader {
 public:
  Reader(const void* data, size_t size) : p_(static_cast<const uint8_t*>(data)), left_(size) {}

  template <typename T>
  T take(const char* field) {
    T value;
    std::memcpy(&value, bytes(sizeof(T), field), sizeof(T));
    return value;
  }
  uint8_t u8(const char* field) { return take<uint8_t>(field); }
  uint16_t u16(const char* field) { return take<uint16_t>(field); }
  uint32_t u32(const char* field) { return take<uint32_t>(field); }
  uint64_t u64(const char* field) { return take<uint64_t>(field); }

  // A view into the body: valid as long as the body is.
  const uint8_t* bytes(size_t n, const char* field) {
    if (n > left_) short_body(n, field);
    const uint8_t* at = p_;
    p_ += n;
    left_ -= n;
    return at;
  }
  std::string_view text(size_t n, const char* field) {
    return {reinterpret_cast<const char*>(bytes(n, field)), n};
  }
  size_t left() const { return left_; }

 private:
  [[noreturn]] void short_body(size_t wanted, const char* field) const;
  const uint8_t* p_;
  size_t left_;
};

// Item i of an array of 32-bit numbers in a body, which need not be aligned.
inline uint32_t u32_at(const uint8_t* numbers, size_t i) {
  uint32_t value;
  std::memcpy(&value, numbers + i * sizeof(value), sizeof(value));
  return value;
}

// Reads the count that starts a list of answers; throws WireError when the question had another number of entries.
void check_count(Reader& reader, size_t asked);

// Throws WireError for an intent that is none.
KeepWish read_keep_wish(Reader& reader);

// Appends fields to a growing body.
class Writer {
 public:
  explicit Writer(size_t reserve = 0) { out_.reserve(reserve); }
  template <typename T>
  Writer& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>, "fields are plain numbers");
    return raw(&value, sizeof(T));
  }
  Writer& u8(uint8_t v) { return put(v); }
  Writer& u16(uint16_t v) { return put(v); }
  Writer& u32(uint32_t v) { return put(v); }
  Writer& u64(uint64_t v) { return put(v); }
  Writer& raw(const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    out_.insert(out_.end(), p, p + n);
    return *this;
  }
  Writer& zeros(size_t n) {
    out_.insert(out_.end(), n, 0);
    return *this;
  }
  Writer& keep_wish(const KeepWish& wish) {
    return u8(static_cast<uint8_t>(wish.intent)).zeros(3).u32(wish.ttl_ms);
  }
  // The prefix that starts every reply body.
  Writer& reply_prefix(Status status, std::string_view text, uint64_t map_epoch) {
    u16(static_cast<uint16_t>(status)).u16(0).u32(static_cast<uint32_t>(text.size())).u64(map_epoch);
    return raw(text.data(), text.size());
  }
  std::vector<uint8_t>& buffer() { return out_; }
  const uint8_t* data() const { return out_.data(); }
  size_t size() const { return out_.size(); }

 private:
  std::vector<uint8_t> out_;
};

struct ReplyPrefix {
  Status status;
  std::string_view text;
  uint64_t map_epoch;
};
ReplyPrefix read_reply_prefix(Reader& reader);

}  // namespace wire
}  // namespace kvstore
