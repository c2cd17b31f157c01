// What a transport adds to the data port from outside: ops of its own, the feature bits that offer them, and what it keeps with a
// connection that uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/declared.hpp"
#include "base/socket_companion.hpp"
#include "protocol/wire.hpp"
#include "segment/data_port/remote_memory.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

// An extension's part of one session; gone with it. The session's thread alone uses it.
class SessionPart {
 public:
  virtual ~SessionPart() = default;
  // Kept going while the session waits for requests; null: nothing to keep going.
  virtual SocketCompanion* companion() { return nullptr; }
  // What PULL and UNREGISTER are about on this connection; null: nothing.
  virtual RemoteMemory* memory() { return nullptr; }
};

// A connection as the op of an extension sees it.
class ExtensionSession {
 public:
  virtual bool is_unix() const = 0;
  // To watch for the peer's end. Only the session reads and writes it.
  virtual int fd() const = 0;
  // A connection is one transport's: set once. Null until then.
  virtual SessionPart* part() const = 0;
  virtual void set_part(std::unique_ptr<SessionPart> part) = 0;
  // Answers the request with OK and these fields.
  virtual void reply(const wire::Writer& fields) = 0;

 protected:
  ~ExtensionSession() = default;
};

// Thread-safe; outlives the sessions, and the store outlives it.
class DataPortExtension {
 public:
  virtual ~DataPortExtension() = default;
  // Bits of HELLO's reply on a connection of that kind.
  virtual uint32_t features(bool is_unix) const = 0;
  // Handlers run on the thread of the session whose request it is, reply once or throw wire::WireError, which is then the answer.
  using Handler = std::function<void(ExtensionSession&, wire::Reader& body)>;
  virtual std::vector<std::pair<wire::Op, Handler>> ops() = 0;
  // Values of some of the declared statistics.
  virtual std::map<std::string, uint64_t> stats() const = 0;
};

struct DataPortExtensionType {
  const char* name;
  std::vector<OptionSpec> options;
  std::vector<CounterSpec>
      stats;  // in DataServer::stats() whether the extension is on or off: 0 until it says otherwise
  // Null when the options turn it off, or when it can't be had on this machine: *refusal then says why. Throws
  // std::invalid_argument over an option, std::runtime_error where it is required and can't be had; both say "<option>: <what is wrong>".
  std::unique_ptr<DataPortExtension> (*make)(SegmentStore& store, const DeclaredOptions& options,
                                             std::string* refusal);
};

}  // namespace kvstore
