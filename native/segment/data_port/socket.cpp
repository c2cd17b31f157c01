#include "segment/data_port/socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvstore {
namespace {

constexpr uint64_t kTransferBytesPerSecondMin = 1 << 20;
constexpr auto kLingerTime = std::chrono::milliseconds(500);
constexpr size_t kLingerBytesMax = 64u << 20;
// A blocked call comes back so often to see whether it should go on. Ticks are counted, not the time: a segment
// that was stopped itself does not take its peers for stalled.
constexpr auto kTick = std::chrono::milliseconds(250);
// While others wait for what a transfer holds, it has to be faster than this once it has had time to begin.
constexpr uint64_t kContendedBytesPerSecondMin = 256 << 10;
constexpr auto kTimeToBegin = std::chrono::milliseconds(1000);
constexpr auto kContendedStall = std::chrono::milliseconds(250);

[[noreturn]] void ended(const char* doing) {
  throw ConnectionEnded(std::string(doing) + ": " + std::strerror(errno));
}

}  // namespace

ServerSocket::Clock::time_point transfer_deadline(uint64_t bytes) {
  return ServerSocket::Clock::now() + ServerSocket::kStallTimeout +
         std::chrono::seconds(bytes / kTransferBytesPerSecondMin);
}

ServerSocket::ServerSocket(int fd, bool is_unix)
    : fd_(fd), is_unix_(is_unix), buffer_(new uint8_t[kBufferBytes]) {
  const timeval tick{0, std::chrono::microseconds(kTick).count()};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof(tick));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof(tick));
  if (is_unix_) return;
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));  // buffer sizes are the kernel's to tune
}

ServerSocket::~ServerSocket() {
  for (const int fd : descriptors_) ::close(fd);
  ::close(fd_);
}

void ServerSocket::shutdown() { ::shutdown(fd_, SHUT_RDWR); }

void ServerSocket::check(Clock::time_point deadline) const {
  if (transfer_ == nullptr && Clock::now() >= deadline) throw ConnectionEnded("the peer is too slow");
}

ServerSocket::Transfer::Transfer(ServerSocket& socket, const Patience& patience)
    : socket_(socket), patience_(patience) {
  socket_.transfer_ = this;
  socket_.ticks_waited_ = 0;
}

void ServerSocket::progressed(size_t bytes) {
  ticks_waited_ = 0;
  if (transfer_ == nullptr) return;
  transfer_->bytes_ += bytes;
  if (!transfer_->patience_.budget->is_contended()) return;
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - transfer_->began_);
  if (took > kTimeToBegin &&
      transfer_->bytes_ < kContendedBytesPerSecondMin / 1000 * static_cast<uint64_t>(took.count()))
    throw ConnectionEnded("the peer is slow, and others wait for what it holds");
}

void ServerSocket::waited() {
  ++ticks_waited_;
  const auto waited = kTick * ticks_waited_;
  if (waited >= (transfer_ == nullptr ? kStallTimeout : transfer_->patience_.stall))
    throw ConnectionEnded("the peer makes no progress");
  if (transfer_ != nullptr && transfer_->patience_.budget->is_contended() && waited >= kContendedStall)
    throw ConnectionEnded("the peer makes no progress, and others wait for what it holds");
}

void ServerSocket::collect_descriptors(const msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      descriptors_.push_back(fd);
    }
  }
  if (descriptors_.size() > kDescriptorsMax || (message.msg_flags & MSG_CTRUNC) != 0)
    throw ConnectionEnded("more descriptors than anyone asked for");
}

size_t ServerSocket::receive(iovec* vectors, size_t count, int flags) {
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  for (;;) {
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    if (is_unix_) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
    }
    const ssize_t n = ::recvmsg(fd_, &message, flags | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      if (is_unix_) collect_descriptors(message);
      progressed(static_cast<size_t>(n));
      return static_cast<size_t>(n);
    }
    if (n == 0) throw ConnectionEnded("closed by the peer");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) ended("receive");
    if ((flags & MSG_DONTWAIT) != 0) return 0;
    waited();
  }
}

bool ServerSocket::wait_readable(Clock::time_point deadline, SocketCompanion* companion) {
  if (buffered_from_ < buffered_to_) return true;
  for (;;) {
    // Mostly the next request is there already: look before sleeping in poll.
    iovec into{buffer_.get(), kBufferBytes};
    buffered_from_ = 0;
    buffered_to_ = 0;
    buffered_to_ = receive(&into, 1, MSG_DONTWAIT);
    if (buffered_to_ > 0) return true;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
    if (left <= 0) return false;
    const bool may_sleep = companion == nullptr || companion->advance();
    pollfd items[2] = {{fd_, POLLIN, 0}, {companion == nullptr ? -1 : companion->event_fd(), POLLIN, 0}};
    const int ready = ::poll(items, 2, may_sleep ? static_cast<int>(std::min<long long>(left, 1 << 30)) : 0);
    if (ready < 0 && errno != EINTR) ended("poll");
  }
}

void ServerSocket::read(void* to, size_t size, Clock::time_point deadline) {
  auto* out = static_cast<uint8_t*>(to);
  while (size > 0) {
    if (buffered_from_ == buffered_to_ && size < kBufferBytes) {
      check(deadline);
      iovec into{buffer_.get(), kBufferBytes};
      buffered_from_ = buffered_to_ = 0;
      buffered_to_ = receive(&into, 1, 0);
    }
    iovec rest{out, size};
    const size_t n = read_some(&rest, 1, deadline);
    out += n;
    size -= n;
  }
}

void ServerSocket::read_in_time(void* to, size_t size, Clock::time_point deadline) {
  auto* out = static_cast<uint8_t*>(to);
  while (size > 0) {
    check(deadline);
    if (!wait_readable(deadline)) continue;
    const size_t n = std::min(size, buffered_to_ - buffered_from_);
    std::memcpy(out, buffer_.get() + buffered_from_, n);
    buffered_from_ += n;
    out += n;
    size -= n;
  }
}

size_t ServerSocket::read_some(iovec* vectors, size_t count, Clock::time_point deadline) {
  if (buffered_from_ == buffered_to_) {
    check(deadline);
    return receive(vectors, std::min(count, kIovMax), 0);
  }
  size_t copied = 0;
  for (size_t i = 0; i < count && buffered_from_ < buffered_to_; ++i) {
    const size_t n = std::min(vectors[i].iov_len, buffered_to_ - buffered_from_);
    std::memcpy(vectors[i].iov_base, buffer_.get() + buffered_from_, n);
    buffered_from_ += n;
    copied += n;
  }
  return copied;
}

void ServerSocket::await_bytes(size_t least) {
  least = std::min(least, kBufferBytes);
  if (buffered_to_ - buffered_from_ >= least) return;
  std::memmove(buffer_.get(), buffer_.get() + buffered_from_, buffered_to_ - buffered_from_);
  buffered_to_ -= buffered_from_;
  buffered_from_ = 0;
  while (buffered_to_ < least) {
    iovec into{buffer_.get() + buffered_to_, kBufferBytes - buffered_to_};
    buffered_to_ += receive(&into, 1, 0);
  }
}

void ServerSocket::write(std::vector<iovec>& vectors, Clock::time_point deadline, int pass_fd) {
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
  for (size_t at = 0; at < vectors.size();) {
    if (vectors[at].iov_len == 0) {
      ++at;
      continue;
    }
    check(deadline);
    msghdr message{};
    message.msg_iov = &vectors[at];
    message.msg_iovlen = std::min(vectors.size() - at, kIovMax);
    if (pass_fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    const bool more = at + message.msg_iovlen < vectors.size();
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) ended("send");
      waited();
      continue;
    }
    progressed(static_cast<size_t>(n));
    pass_fd = -1;
    for (auto left = static_cast<size_t>(n); left > 0;) {
      iovec& v = vectors[at];
      const size_t step = std::min(left, v.iov_len);
      v.iov_base = static_cast<uint8_t*>(v.iov_base) + step;
      v.iov_len -= step;
      left -= step;
      if (v.iov_len == 0) ++at;
    }
  }
}

bool ServerSocket::peer_has_closed() const {
  pollfd item{fd_, POLLRDHUP, 0};
  return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool ServerSocket::has_more() const noexcept {
  if (buffered_from_ < buffered_to_) return true;
  pollfd item{fd_, POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

int ServerSocket::take_descriptor() {
  if (descriptors_.empty()) return -1;
  const int fd = descriptors_.front();
  descriptors_.pop_front();
  return fd;
}

void ServerSocket::linger() {
  // Closing with unread bytes would reset the connection and could take the last reply with it.
  ::shutdown(fd_, SHUT_WR);
  const auto deadline = Clock::now() + kLingerTime;
  try {
    for (size_t thrown_away = 0; thrown_away < kLingerBytesMax && wait_readable(deadline);) {
      thrown_away += buffered_to_ - buffered_from_;
      buffered_from_ = buffered_to_;
      if (Clock::now() >= deadline) break;
    }
  } catch (const ConnectionEnded&) {  // what we wait for
  }
}

}  // namespace kvstore
