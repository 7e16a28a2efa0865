// ReplayGuard: remembers the most recent nonces, so that a replayed hello is noticed and counted.
// (Its handshake could not complete anyway: the acceptor's nonce is new each time.)
//
// Threads: the endpoint's loop thread.
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
  std::set<Nonce> known_;  // ordered: strangers choose the nonces, and could make hashes collide
  std::deque<Nonce> order_;
};

}  // namespace weft::transport
