// RequestIndex: finds a request of one peer that waits or runs here, when its caller gives it up.
//
// A request is added when it comes and not removed when it ends: its last user destroys it, and one
// of the next sweeps removes its entry. So a request needs no lock. Peers nearly always number
// their requests upwards, and then adding one takes constant time, otherwise logarithmic time.
//
// Threads: one at a time. Ownership: keeps no request alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "rpc_backend/core/call_context.h"

namespace weft::rpc {

class RequestIndex {
 public:
  void add(std::uint64_t id, std::weak_ptr<CallContext> call);
  // Cancels a request that its caller has given up. Null: it is over, or there never was one.
  std::shared_ptr<CallContext> cancel(std::uint64_t id);
  // Cancels all requests of a lost caller. Returns those that are not over.
  std::vector<std::shared_ptr<CallContext>> cancelAll();
  // How many entries there are, including those of requests that are over.
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  std::multimap<std::uint64_t, std::weak_ptr<CallContext>> entries_;  // by id
  std::size_t sweep_at_ = 64;                                         // entries
};

}  // namespace weft::rpc
