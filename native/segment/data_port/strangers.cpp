#include "segment/data_port/strangers.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

namespace kvstore {

Stranger::~Stranger() {
  if (fd_ >= 0) ::close(fd_);
}

int Stranger::take_fd() { return std::exchange(fd_, -1); }

Stranger::State Stranger::state() const {
  char byte;
  const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return State::kSpeaks;
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? State::kSilent : State::kGone;
}

void Strangers::add(int fd, bool is_unix) {
  try {
    all_.emplace_back(budget_, fd, is_unix);
  } catch (...) {
    ::close(fd);
    throw;
  }
  unix_count_ += is_unix;
}

bool Strangers::has_older(bool is_unix, Budget::Clock::time_point since) const {
  for (const Stranger& stranger : all_)
    if (stranger.is_unix == is_unix) return stranger.since < since;
  return false;
}

void Strangers::clear() noexcept {
  all_.clear();
  unix_count_ = 0;
}

void Strangers::poll_for(std::vector<pollfd>& polled) const {
  for (const Stranger& stranger : all_) polled.push_back({stranger.fd(), POLLIN, 0});
}

std::list<Stranger>::iterator Strangers::close(std::list<Stranger>::iterator stranger) noexcept {
  unix_count_ -= stranger->is_unix;
  return all_.erase(stranger);
}

std::list<Stranger> Strangers::sort_out(const pollfd* items) {
  std::list<Stranger> speaking;
  for (auto stranger = all_.begin(); stranger != all_.end(); ++items) {
    const auto next = std::next(stranger);
    if (items->revents != 0) {
      const Stranger::State state = stranger->state();
      if (state == Stranger::State::kGone) {
        close(stranger);
      } else if (state == Stranger::State::kSpeaks) {
        unix_count_ -= stranger->is_unix;
        speaking.splice(speaking.end(), all_, stranger);
      }
    }
    stranger = next;
  }
  return speaking;
}

size_t Strangers::close_before(Budget::Clock::time_point since) {
  size_t closed = 0;
  while (!all_.empty() && all_.front().since < since) {
    close(all_.begin());
    ++closed;
  }
  return closed;
}

bool Strangers::close_oldest(bool is_unix, Budget::Clock::time_point since) {
  for (auto stranger = all_.begin(); stranger != all_.end() && stranger->since < since; ++stranger) {
    // What a busy machine has not come round to reading may be a HELLO.
    if (stranger->is_unix != is_unix || stranger->state() == Stranger::State::kSpeaks) continue;
    close(stranger);
    return true;
  }
  return false;
}

}  // namespace kvstore
