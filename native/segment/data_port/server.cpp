#include "segment/data_port/server.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/peer_credentials.hpp"

namespace kvstore {
namespace {

// A newcomer gets the room of the oldest that has not said HELLO yet, so that a client, which greets at once, gets in whoever else sits there; and the ones that have greeted are not counted here. None has to go before it had time to
// greet: when a whole fleet comes at once, the newest wait in the listener's queue until the first have greeted.
constexpr auto kTimeToGreet = std::chrono::milliseconds(100);
constexpr size_t kEndingMax = 256;  // that were told to go and are not gone yet
constexpr int kCrowdedPauseMs = 5;  // until it is looked again whether there is room
constexpr int kAcceptedMax = 64;    // of a listener, before others have their turn
constexpr int kStrangersMs = 100;   // how often it is looked whose time to greet is over
constexpr int kAcceptPauseMs = 50;  // when descriptors or threads run out: others end meanwhile

const DataServerOptions& validated(const DataServerOptions& options) {
  if (options.connections_max == 0) throw std::invalid_argument("connections_max must be at least 1");
  if (options.ungreeted_max == 0) throw std::invalid_argument("ungreeted_max must be at least 1");
  if (options.stall_timeout_ms == 0) throw std::invalid_argument("stall_timeout_ms must be at least 1");
  if (options.idle_timeout_ms == 0) throw std::invalid_argument("idle_timeout_ms must be at least 1");
  for (const std::string& token : options.tokens)
    if (token.size() > wire::kTokenBytesMax)
      throw std::invalid_argument("a token is over " + std::to_string(wire::kTokenBytesMax) + " bytes");
  return options;
}

}  // namespace

DataServer::DataServer(std::shared_ptr<SegmentStore> store, const DataServerOptions& options)
    : store_(std::move(store)),
      options_(validated(options)),
      context_{*store_,
               options.tokens,
               std::chrono::milliseconds(options.idle_timeout_ms),
               options.connections_max,
               {},
               std::chrono::milliseconds(options.stall_timeout_ms)},
      strangers_(store_->budgets().ungreeted) {
  Budgets& budgets = store_->budgets();
  budgets.connections.set_limits(options_.connections_max, 1);
  budgets.ungreeted.set_limits(options_.ungreeted_max * (options_.unix_path.empty() ? 1 : 2), 1);
  open_extensions();
  tcp_ = ServerListener::tcp(options_.tcp_host, options_.tcp_port);
  tcp_port_ = tcp_.front().port();
  if (!options_.unix_path.empty())
    unix_ = std::make_unique<ServerListener>(ServerListener::unix_socket(options_.unix_path));
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd of the data server");
  try {
    polled_ = {{wake_fd_, POLLIN, 0}, {-1, POLLIN, 0}};
    for (const ServerListener& listener : tcp_) polled_.push_back({listener.fd(), POLLIN, 0});
    acceptor_ = std::thread([this] { accept_loop(); });
  } catch (...) {
    ::close(wake_fd_);
    throw;
  }
}

DataServer::~DataServer() {
  stop();
  ::close(wake_fd_);
}

void DataServer::open_extensions() {
  std::vector<OptionSpec> declared;
  for (const DataPortExtensionType& type : options_.extensions)
    declared.insert(declared.end(), type.options.begin(), type.options.end());
  const DeclaredOptions values(declared, options_.extension_options);
  for (const DataPortExtensionType& type : options_.extensions) {
    std::string refusal;
    auto extension = type.make(*store_, values, &refusal);
    if (!refusal.empty()) refusals_.emplace(type.name, std::move(refusal));
    if (extension == nullptr) continue;
    for (auto& [op, handler] : extension->ops()) context_.ops.add(op, std::move(handler));
    context_.tcp_features |= extension->features(false);
    context_.unix_features |= extension->features(true);
    extensions_.push_back(std::move(extension));
    names_.push_back(type.name);
  }
}

void DataServer::wake_acceptor() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the acceptor is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

void DataServer::remake_unix_socket() {
  const MutexLock stopping(stop_mutex_);
  if (options_.unix_path.empty() || context_.stopping.load() || !owner_.is_here()) return;
  auto made = std::make_unique<ServerListener>(ServerListener::unix_socket(options_.unix_path));
  {
    const MutexLock lock(mutex_);
    new_unix_ = std::move(made);
  }
  context_.counters.unix_sockets_remade.fetch_add(1, std::memory_order_relaxed);
  wake_acceptor();
}

void DataServer::stop() {
  if (!owner_.is_here())
    return;  // the sockets and their path are the parent's, and its threads are not here to be joined
  const MutexLock stopping(stop_mutex_);
  context_.stopping.store(true);
  wake_acceptor();
  if (acceptor_.joinable()) acceptor_.join();  // from here on no connection is added
  strangers_.clear();
  tcp_.clear();
  unix_.reset();
  std::list<std::unique_ptr<Connection>> connections;
  {
    const MutexLock lock(mutex_);
    connections.swap(connections_);
    new_unix_.reset();
  }
  for (const auto& connection : connections) connection->session.shutdown();
  store_->interrupt();
  for (const auto& connection : connections) connection->thread.join();
}

std::map<std::string, uint64_t> DataServer::stats() {
  const DataServerCounters& c = context_.counters;
  std::map<std::string, uint64_t> out{{"connections_total", c.connections_total.load()},
                                      {"requests", c.requests.load()},
                                      {"bad_requests", c.bad_requests.load()},
                                      {"refused_connections", c.refused_connections.load()},
                                      {"unauthorized", c.unauthorized.load()},
                                      {"internal_errors", c.internal_errors.load()},
                                      {"unix_sockets_remade", c.unix_sockets_remade.load()},
                                      {"ungreeted_dropped", c.ungreeted_dropped.load()},
                                      {"connections", context_.greeted.load()},
                                      {"large_body_bytes", store_->budgets().body_bytes.used()}};
  for (const DataPortExtensionType& type : options_.extensions)
    for (const CounterSpec& declared : type.stats) out[declared.name] = 0;
  for (const auto& extension : extensions_)
    for (const auto& [name, value] : extension->stats()) out[name] = value;
  out["ungreeted_connections"] = store_->budgets().ungreeted.used();
  return out;
}

void DataServer::accept_loop() noexcept {
  const size_t listeners = polled_.size();  // and the wake-up
  while (!context_.stopping.load()) {
    const bool unix_room = has_room(true), tcp_room = has_room(false);
    polled_[1].fd = unix_ && unix_room ? unix_->fd() : -1;
    for (size_t i = 0; i < tcp_.size(); ++i) polled_[i + 2].fd = tcp_room ? tcp_[i].fd() : -1;
    try {
      polled_.resize(listeners);
      strangers_.poll_for(polled_);
      const int quiet_ms = polled_.size() > listeners ? kStrangersMs : -1;
      if (::poll(polled_.data(), polled_.size(), unix_room && tcp_room ? quiet_ms : kCrowdedPauseMs) < 0)
        continue;
      if (polled_[0].revents != 0) {
        uint64_t count;
        [[maybe_unused]] const ssize_t n = ::read(wake_fd_, &count, sizeof(count));
      }
      reap_ended();
      if (context_.stopping.load()) return;
      for (Stranger& speaking : strangers_.sort_out(polled_.data() + listeners))
        start_session(speaking.take_fd(), speaking.is_unix, speaking.since);
      for (size_t late = strangers_.close_before(SegmentStore::Clock::now() - ServerSession::kHelloTimeout);
           late > 0; --late)
        count_ungreeted_dropped(context_);
      if (polled_[1].revents != 0) accept_from(*unix_);
      for (size_t i = 0; i < tcp_.size(); ++i)
        if (polled_[i + 2].revents != 0) accept_from(tcp_[i]);
      {
        const MutexLock lock(mutex_);
        if (new_unix_ != nullptr) unix_ = std::move(new_unix_);
      }
    } catch (const std::exception&) {
      context_.counters.internal_errors.fetch_add(1, std::memory_order_relaxed);
      ::poll(polled_.data(), 1, kAcceptPauseMs);
    }
  }
}

void DataServer::accept_from(const ServerListener& listener) {
  for (int accepted = 0; accepted < kAcceptedMax && make_room(listener.is_unix()); ++accepted)
    if (!accept_one(listener)) return;
}

bool DataServer::accept_one(const ServerListener& listener) {
  const int fd = listener.accept();
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      context_.counters.refused_connections.fetch_add(1, std::memory_order_relaxed);
      store_->budgets().connections.count_refused();
      pollfd wake{wake_fd_, POLLIN, 0};
      ::poll(&wake, 1, kAcceptPauseMs);
    }
    return false;  // else nobody is there any more
  }
  if (listener.is_unix() && !is_own_or_root_peer(fd)) {
    context_.counters.refused_connections.fetch_add(1, std::memory_order_relaxed);
    ::close(fd);
    return true;
  }
  context_.counters.connections_total.fetch_add(1, std::memory_order_relaxed);
  strangers_.add(fd, listener.is_unix());
  return true;
}

DataServer::Room DataServer::room(bool is_unix) {
  size_t ending = 0;
  std::vector<Connection*> ungreeted;  // the oldest first
  for (const auto& connection : connections_) {
    if (connection->ended || connection->dropped) {
      ++ending;
    } else if (connection->session.is_unix() == is_unix && !connection->session.is_greeted()) {
      ungreeted.push_back(connection.get());
    }
  }
  if (ungreeted.size() + strangers_.count(is_unix) < options_.ungreeted_max) return {true, {}};
  if (ungreeted.empty() || ending >= kEndingMax ||
      SegmentStore::Clock::now() - ungreeted.front()->since < kTimeToGreet)
    return {false, {}};
  return {true, std::move(ungreeted)};
}

DataServer::Connection* DataServer::idlest(const std::vector<Connection*>& ungreeted) {
  std::vector<pollfd> items;
  for (const Connection* connection : ungreeted)
    items.push_back({connection->session.fd(), POLLIN | POLLRDHUP, 0});
  if (::poll(items.data(), items.size(), 0) < 0) return ungreeted.front();
  const auto now = SegmentStore::Clock::now();
  for (size_t i = 0; i < items.size() && now - ungreeted[i]->since >= kTimeToGreet; ++i)
    if ((items[i].revents & POLLIN) == 0 || (items[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
      return ungreeted[i];
  return ungreeted.front();
}

bool DataServer::has_room(bool is_unix) {
  if (strangers_.has_older(is_unix, SegmentStore::Clock::now() - kTimeToGreet)) return true;
  const MutexLock lock(mutex_);
  return room(is_unix).is_there;
}

bool DataServer::make_room(bool is_unix) {
  const MutexLock lock(mutex_);
  const Room there = room(is_unix);
  if (there.is_there && there.crowd.empty()) return true;
  if (!strangers_.close_oldest(is_unix, SegmentStore::Clock::now() - kTimeToGreet)) {
    if (!there.is_there) return false;
    Connection* const leaves = idlest(there.crowd);
    leaves->dropped = true;
    leaves->session.shutdown();
  }
  count_ungreeted_dropped(context_);
  return true;
}

void DataServer::start_session(int fd, bool is_unix, SegmentStore::Clock::time_point since) {
  const MutexLock lock(mutex_);
  connections_.push_back(std::make_unique<Connection>(context_, fd, is_unix, since));
  Connection& connection = *connections_.back();
  try {
    connection.thread = std::thread([this, &connection] {
      connection.session.run();
      connection.session.shutdown();
      {
        const MutexLock ending(mutex_);
        connection.ended = true;
      }
      wake_acceptor();
    });
  } catch (...) {  // no thread to be had; the connection closes with its object
    connections_.pop_back();
    throw;
  }
}

void DataServer::reap_ended() {
  std::list<std::unique_ptr<Connection>> ended;
  {
    const MutexLock lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if ((*it)->ended) ended.splice(ended.end(), connections_, it);
      it = next;
    }
  }
  for (const auto& connection : ended) connection->thread.join();
}

}  // namespace kvstore
