#include "transports/ucx/segment/extension.hpp"

#include <limits>

#include "transports/ucx/core/mode.hpp"
#include "transports/ucx/segment/session.hpp"

namespace kvstore {
namespace {

using wire::Status;
using wire::WireError;

class UcxExtension : public DataPortExtension {
 public:
  UcxExtension(const std::string& library_path, const SegmentStore& store, uint32_t sessions_max)
      : pool_(library_path, store), sessions_max_(sessions_max) {}

  uint32_t features(bool is_unix) const override { return is_unix ? 0 : rdma_codec::kFeatureRdma; }
  std::vector<std::pair<wire::Op, Handler>> ops() override {
    return {
        {rdma_codec::kOpConnect, [this](ExtensionSession& s, wire::Reader& body) { on_connect(s, body); }},
        {rdma_codec::kOpRegister, [](ExtensionSession& s, wire::Reader& body) { on_register(s, body); }}};
  }
  std::map<std::string, uint64_t> stats() const override {
    return {{"rdma_active", 1},
            {"rdma_sessions", pool_.sessions.load()},
            {"rdma_sessions_total", pool_.sessions_total.load()},
            {"rdma_pulled_bytes", pool_.pulled_bytes.load()},
            {"rdma_failures", pool_.failures.load()}};
  }

 private:
  void on_connect(ExtensionSession& session, wire::Reader& body) {
    if (session.is_unix()) throw WireError(Status::kBadRequest, "the unix socket offers no RDMA");
    if (session.part() != nullptr) throw WireError(Status::kBadRequest, "RDMA is connected already");
    const std::vector<uint8_t> address = rdma_codec::read_connect(body);
    if (pool_.sessions.load(std::memory_order_relaxed) >= sessions_max_)
      throw WireError(Status::kUnavailable,
                      "over " + std::to_string(sessions_max_) + " RDMA connections: raise rdma_sessions_max");
    std::unique_ptr<UcxSegmentSession> part;
    try {
      part = std::make_unique<UcxSegmentSession>(pool_, address, session.fd());
    } catch (const UcxError& e) {
      pool_.failures.fetch_add(1, std::memory_order_relaxed);
      throw WireError(Status::kUnavailable, e.what());
    }
    pool_.sessions_total.fetch_add(1, std::memory_order_relaxed);
    wire::Writer reply;
    rdma_codec::write_connect_reply(reply, part->describe());
    session.set_part(std::move(part));
    session.reply(reply);
  }

  static void on_register(ExtensionSession& session, wire::Reader& body) {
    auto* const part = dynamic_cast<UcxSegmentSession*>(session.part());
    if (part == nullptr) throw WireError(Status::kBadRequest, "this op needs RDMA_CONNECT before it");
    wire::Writer reply;
    reply.u32(part->add(rdma_codec::read_register(body))).u32(0);
    session.reply(reply);
  }

  UcxPool pool_;
  const uint32_t sessions_max_;
};

std::unique_ptr<DataPortExtension> make_ucx(SegmentStore& store, const DeclaredOptions& options,
                                            std::string* refusal) {
  const RdmaMode mode = rdma_mode(options.text("rdma"));
  const auto sessions_max =
      static_cast<uint32_t>(options.number("rdma_sessions_max", 1, std::numeric_limits<uint32_t>::max()));
  if (mode == RdmaMode::kOff) return nullptr;
  try {
    return std::make_unique<UcxExtension>(options.text("rdma_library"), store, sessions_max);
  } catch (const UcxError& e) {
    if (mode == RdmaMode::kRequired) throw UcxError(std::string("rdma: is required, but ") + e.what());
    *refusal = e.what();
    return nullptr;
  }
}

}  // namespace

DataPortExtensionType ucx_extension() {
  return {"rdma",
          {{"rdma", "off", "'off', 'auto' (where it works) or 'required'"},
           {"rdma_library", "", "path of libucp.so.0; empty: the system's"},
           {"rdma_sessions_max", "256", "most client connections with RDMA at a time"}},
          {{"rdma_active", "1 while the pool is offered by RDMA.", true},
           {"rdma_sessions", "Client connections with RDMA now.", true},
           {"rdma_sessions_total", "Client connections that asked for RDMA and got it."},
           {"rdma_pulled_bytes", "Bytes read by RDMA out of writers' memory."},
           {"rdma_failures", "RDMA sessions and reads that failed."}},
          make_ucx};
}

}  // namespace kvstore
