// A transport that the product does not come with, added from outside as HACKING.md says: its own option, counters, feature bit, op and
// statistic. Pages are got by an op that sends them masked in the reply's body; everything else goes the data port's way.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/digest.hpp"
#include "client/connection/data_channel.hpp"
#include "client/page_client_fixture.hpp"
#include "segment/data_port/extension.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

namespace {

constexpr const char* kName = "toy";
constexpr uint32_t kFeature = 1u << 20;
constexpr auto kOpPeek = static_cast<wire::Op>(200);
constexpr RunLimits kPeekLimits{4u << 20, 4096};
constexpr size_t kEntryBytes = 8;  // status, 3 reserved, digest

// ---- the client's side ----

class ToyTransport : public Transport {
 public:
  ToyTransport(const SegmentRecord& segment, TransportContext& context, uint8_t mask)
      : channel_({segment.host, segment.tcp_port, ""}, segment.pool_id, context, kName),
        peeks_(context.counters.named("toy_peeks")),
        mask_(mask) {}

  const char* name() const override { return kName; }
  bool same_host() const override { return false; }
  NetStatus connect(const Deadline& deadline) {
    ConnectionPool::Lease lease;
    const NetStatus status = channel_.pool().acquire(deadline, &lease);
    if (status != NetStatus::kOk) return status;
    lease.keep();
    return (lease->features() & kFeature) != 0 ? NetStatus::kOk : NetStatus::kUnreachable;
  }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override {
    if (batch.kind == BatchKind::kPut) return channel_.put(batch, deadline);
    if (batch.kind != BatchKind::kGet) return channel_.submit_statuses(batch, deadline);
    return channel_.run_stripes(batch, kPeekLimits, deadline,
                                [&](FrameConnection& connection, const std::vector<EntryRun>& runs) {
                                  NetStatus status = NetStatus::kOk;
                                  for (const EntryRun& run : runs)
                                    if (status == NetStatus::kOk)
                                      status = peek(connection, run, batch, deadline);
                                  return status;
                                });
  }

 private:
  NetStatus peek(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                 const Deadline& deadline) {
    wire::Writer body;
    write_run(body, *batch.keys, run);
    uint32_t id = 0;
    FrameReply reply;
    NetStatus status = connection.send_request(kOpPeek, body.data(), body.size(), 0, deadline, &id);
    if (status == NetStatus::kOk)
      status = connection.receive_reply(kOpPeek, id, run.entry_count() * kEntryBytes + run.bytes, deadline,
                                        &reply);
    if (status != NetStatus::kOk) return status;
    peeks_.add();
    try {
      wire::Reader fields = reply.reader();
      for (const uint32_t entry : run.entries(batch.keys->shard_count)) {
        auto found = static_cast<Status>(fields.u8("status"));
        fields.bytes(3, "reserved");
        const uint32_t digest = fields.u32("digest");
        if (found == Status::kOk && !unmask(fields, batch, entry, digest)) found = Status::kDigestMismatch;
        batch.set_status(entry, found);
      }
    } catch (const wire::WireError&) {
      return NetStatus::kProtocol;
    }
    return NetStatus::kOk;
  }

  bool unmask(wire::Reader& fields, TransportBatch& batch, uint32_t entry, uint32_t digest) {
    uint32_t crc = 0;
    for (size_t j = 0; j < batch.memory->piece_count(entry); ++j) {
      const iovec piece = batch.memory->piece(entry, j);
      auto* to = static_cast<uint8_t*>(piece.iov_base);
      const uint8_t* from = fields.bytes(piece.iov_len, "bytes");
      std::transform(from, from + piece.iov_len, to, [&](uint8_t b) { return b ^ mask_; });
      crc = crc32c(crc, to, piece.iov_len);
    }
    if (crc == digest) channel_.bytes_get().add(batch.memory->entry_bytes(entry));
    return crc == digest;
  }

  DataChannel channel_;
  Count& peeks_;
  const uint8_t mask_;
};

class ToyFactory : public TransportFactory {
 public:
  ToyFactory(TransportContext& context, bool required, uint8_t mask)
      : context_(context), required_(required), mask_(mask) {}
  std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                  NetStatus* why) override {
    auto transport = std::make_unique<ToyTransport>(segment, context_, mask_);
    *why = transport->connect(deadline);
    if (*why != NetStatus::kOk) return nullptr;
    return transport;
  }
  bool required() const override { return required_; }

 private:
  TransportContext& context_;
  const bool required_;
  const uint8_t mask_;
};

const OptionSpec kMask{"toy_mask", "90", "what pages are masked with"};

std::unique_ptr<TransportFactory> make_client_side(TransportContext& context, const DeclaredOptions& options,
                                                   std::string* refusal) {
  const std::string& mode = options.text("toy");
  if (mode == "off") return nullptr;
  if (mode == "refused") {
    *refusal = "no toys here";
    return nullptr;
  }
  return std::make_unique<ToyFactory>(context, mode == "required",
                                      static_cast<uint8_t>(options.number("toy_mask", 0, 255)));
}

TransportType toy_transport() {
  return {kName,
          100,
          TransportType::Reach::kAnyHost,
          {{"toy", "on", "'on', 'off', 'required' or 'refused'"}, kMask},
          {{"toy_peeks", "replies to PEEK"}},
          make_client_side};
}

// ---- the segment's side ----

class ToyExtension : public DataPortExtension {
 public:
  ToyExtension(SegmentStore& store, uint8_t mask) : store_(store), mask_(mask) {}
  uint32_t features(bool is_unix) const override { return is_unix ? 0 : kFeature; }
  std::vector<std::pair<wire::Op, Handler>> ops() override {
    return {{kOpPeek, [this](ExtensionSession& session, wire::Reader& body) { on_peek(session, body); }}};
  }
  std::map<std::string, uint64_t> stats() const override { return {{"toy_pages", pages_.load()}}; }

 private:
  void on_peek(ExtensionSession& session, wire::Reader& body) {
    const std::vector<ReadEntry> reads = store_.acquire_reads(read_key_block(body), nullptr);
    wire::Writer reply;
    for (const ReadEntry& read : reads) {
      reply.u8(static_cast<uint8_t>(read.status)).zeros(3).u32(read.digest);
      if (read.status != Status::kOk) continue;
      for (uint32_t i = 0; i < read.length; ++i) reply.u8(read.data[i] ^ mask_);
      ++pages_;
    }
    store_.release_reads(reads);
    session.reply(reply);
  }

  SegmentStore& store_;
  const uint8_t mask_;
  std::atomic<uint64_t> pages_{0};
};

DataPortExtensionType toy_extension() {
  return {kName,
          {kMask},
          {{"toy_pages", "pages sent in a reply to PEEK"}},
          [](SegmentStore& store, const DeclaredOptions& options,
             std::string*) -> std::unique_ptr<DataPortExtension> {
            return std::make_unique<ToyExtension>(store,
                                                  static_cast<uint8_t>(options.number("toy_mask", 0, 255)));
          }};
}

// ---- both ----

PageClientOptions with_toy(const std::string& mode = "on", const std::string& mask = "90") {
  PageClientOptions options = client_options();
  options.transports.push_back(toy_transport());
  options.transport_options = {{"toy", mode}, {"toy_mask", mask}};
  return options;
}

DataServerOptions serving_toy(const std::string& mask = "90") {
  DataServerOptions options;
  options.extensions = builtin_extensions();
  options.extensions.push_back(toy_extension());
  options.extension_options = {{"toy_mask", mask}};
  return options;
}

struct Pages {
  explicit Pages(unsigned seed)
      : source(24 * 5001),
        target(24 * 5001, 0),
        out(12, 2, 5001, 3, seed, source.data()),
        in(12, 2, 5001, 2, seed, target.data()) {
    fill(source.data(), source.size(), seed);
  }
  std::vector<uint8_t> source, target;
  Batch out, in;
};

std::string transport_of_the_only_segment(const Fixture& f) { return f.client.segments().at(0).transport; }

}  // namespace

TEST(a_transport_from_outside_moves_the_pages_of_the_segments_that_offer_it) {
  Fixture f(with_toy("on", "165"));
  TestSegment segment(f.directory, 0, 1, socket_path(), 64u << 20, serving_toy("165"));
  f.open();
  Pages pages(1);
  f.put(pages.out);
  CHECK(pages.out.all(Status::kOk));
  f.exists(pages.in, 1000);
  CHECK(pages.in.all(Status::kOk));
  f.get(pages.in);
  CHECK(pages.in.all(Status::kOk));
  CHECK(pages.target == pages.source);
  CHECK_EQ(transport_of_the_only_segment(f), std::string("toy"));
  CHECK_EQ(f.count("transport_toy_bytes_put"), pages.source.size());
  CHECK_EQ(f.count("transport_toy_bytes_get"), pages.source.size());
  CHECK(f.count("toy_peeks") >= 1);
  CHECK_EQ(f.count("transport_tcp_bytes_get") + f.count("transport_same_host_bytes_get"), 0u);
  CHECK_EQ(segment.server().stats().at("toy_pages"), 24u);
  CHECK(segment.server().extensions() == std::vector<std::string>{"toy"});
}

TEST(bytes_that_a_transport_from_outside_damages_are_not_served) {
  Fixture f(with_toy("on", "1"));
  TestSegment segment(f.directory, 0, 1, "", 64u << 20, serving_toy("2"));
  f.open();
  Pages pages(2);
  f.put(pages.out);
  CHECK(pages.out.all(Status::kOk));
  f.get(pages.in);
  CHECK(pages.in.none_ok());
}

TEST(a_segment_without_it_is_had_by_the_next_transport) {
  Fixture f(with_toy());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  Pages pages(3);
  f.put(pages.out);
  f.get(pages.in);
  CHECK(pages.in.all(Status::kOk));
  CHECK_EQ(transport_of_the_only_segment(f), std::string("tcp"));
  CHECK_EQ(f.count("toy_peeks"), 0u);
}

TEST(no_page_goes_another_way_to_another_host_when_a_transport_is_required) {
  Fixture f(with_toy("required"));
  TestSegment segment(f.directory, 0, 1);
  f.open();
  Pages pages(4);
  f.put(pages.out, 500);
  CHECK(pages.out.none_ok());
  CHECK_EQ(f.count("transport_tcp_bytes_put"), 0u);
}

TEST(a_transport_that_is_refused_says_why_and_leaves_the_others) {
  Fixture f(with_toy("refused"));
  CHECK_EQ(f.client.transport_refusals().at("toy"), std::string("no toys here"));
  TestSegment segment(f.directory, 0, 1);
  f.open();
  Pages pages(5);
  f.put(pages.out);
  CHECK(pages.out.all(Status::kOk));
}

TEST(what_a_transport_declares_is_counted_from_the_start_also_while_it_is_off) {
  Fixture f(with_toy("off"));
  const auto all = f.client.counters().all();
  for (const char* name :
       {"toy_peeks", "transport_toy_bytes_get", "transport_rdma_bytes_put", "rdma_refused"})
    CHECK(std::count(all.begin(), all.end(), std::pair<std::string, uint64_t>(name, 0)) == 1);
}

TEST(wrong_options_are_refused_by_their_names) {
  const auto refused = [](const OptionTexts& given, const std::string& name) {
    PageClientOptions options = with_toy();
    options.transport_options = given;
    try {
      const PageClient client({{"127.0.0.1", 1, ""}}, options);
    } catch (const std::invalid_argument& e) {
      return std::string(e.what()).find(name) != std::string::npos;
    }
    return false;
  };
  CHECK(refused({{"toy_mask", "256"}}, "toy_mask: a number between 0 and 255, not '256'"));
  CHECK(refused({{"toy_mask", "-1"}}, "toy_mask"));
  CHECK(refused({{"tcp", "yes"}}, "tcp: 'true' or 'false'"));
  CHECK(refused({{"toys", "on"}}, "toys: no such option; there are toy, toy_mask, same_host"));
  CHECK(refused({{"toy", "off"}, {"tcp", "false"}, {"same_host", "false"}}, "every transport is off"));
}

TEST(two_extensions_of_one_op_are_refused) {
  DataServerOptions options = serving_toy();
  options.tcp_host = "127.0.0.1";
  DataPortExtensionType twin = toy_extension();
  twin.options.clear();
  options.extensions.push_back(twin);
  SegmentStoreOptions small;
  small.capacity_bytes = 1u << 20;
  bool refused = false;
  try {
    const DataServer server(std::make_shared<SegmentStore>(small), options);
  } catch (const std::logic_error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST_MAIN()
