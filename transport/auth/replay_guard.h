// Remembers the most recent nonces, so that a hello sent twice is noticed and counted. (It
// could not be completed anyway: the acceptor's nonce is new each time.) Bounded; loop thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <set>

#include "transport/auth/hello.h"

namespace weft::transport {

class ReplayGuard {
 public:
  explicit ReplayGuard(std::size_t capacity = 4096) : capacity_(capacity) {}

  // False if this nonce is among the recent ones. Remembers it.
  bool fresh(const Nonce& nonce) {
    if (!known_.insert(nonce).second) return false;
    order_.push_back(nonce);
    if (order_.size() > capacity_) {
      known_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }

 private:
  std::size_t capacity_;
  std::set<Nonce>
      known_;  // ordered: a stranger chooses the nonces, hash collisions are his to make
  std::deque<Nonce> order_;
};

}  // namespace weft::transport
