// Connections that were accepted and have sent nothing yet. They have no thread: the acceptor polls them, and hands
// over those that begin to speak. So who connects and says nothing costs a descriptor. The acceptor's alone.
#pragma once

#include <poll.h>

#include <cstddef>
#include <list>
#include <vector>

#include "segment/budget.hpp"

namespace kvstore {

// One of them; closes with it.
class Stranger {
 public:
  Stranger(Budget& budget, int fd, bool from_unix) : is_unix(from_unix), fd_(fd), share_(budget) {
    share_.take_anyway(1);
  }
  ~Stranger();
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  int fd() const { return fd_; }
  int take_fd();  // the caller's from now on
  enum class State { kSilent, kSpeaks, kGone };
  State state() const;

  const bool is_unix;
  const Budget::Clock::time_point since = Budget::Clock::now();

 private:
  int fd_;
  BudgetShare share_;
};

class Strangers {
 public:
  explicit Strangers(Budget& budget) : budget_(budget) {}

  // Owns `fd`, also when it throws.
  void add(int fd, bool is_unix);
  size_t count(bool is_unix) const { return is_unix ? unix_count_ : all_.size() - unix_count_; }
  bool has_older(bool is_unix, Budget::Clock::time_point since) const;
  void clear() noexcept;

  // What is to be polled, appended.
  void poll_for(std::vector<pollfd>& polled) const;
  // `items`: what poll_for() appended, after poll(); nothing came or went in between. Closes those that have gone;
  // returns those that speak.
  std::list<Stranger> sort_out(const pollfd* items);
  // Closes those that came before `since`. Returns how many.
  size_t close_before(Budget::Clock::time_point since);
  // Closes the oldest one of its kind that still says nothing, if it came before `since`.
  bool close_oldest(bool is_unix, Budget::Clock::time_point since);

 private:
  std::list<Stranger>::iterator close(std::list<Stranger>::iterator stranger) noexcept;

  Budget& budget_;
  std::list<Stranger> all_;  // the oldest first
  size_t unix_count_ = 0;
};

}  // namespace kvstore
