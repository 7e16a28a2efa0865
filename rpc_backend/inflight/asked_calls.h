// AskedCalls: the requests of one peer that wait or run here, to find one that its caller gives up.
//
// A request is entered when it comes and never taken out: it goes from memory with its last user,
// and its entry with one of the next sweeps. So a request costs no lock. Peers number their
// requests upwards, nearly always, and then an entry finds its place at once; one that does not
// costs the logarithm of what is here.
//
// Threads: one at a time. It keeps no request alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "rpc_backend/core/call_context.h"

namespace weft::rpc {

class AskedCalls {
 public:
  void add(std::uint64_t id, std::weak_ptr<CallContext> call);
  // The caller has given that request up. Null: it is over, or there never was one.
  std::shared_ptr<CallContext> cancel(std::uint64_t id);
  // The caller is gone. Returns those that are not over.
  std::vector<std::shared_ptr<CallContext>> cancelAll();
  // Entries, those of requests that are over included.
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  std::multimap<std::uint64_t, std::weak_ptr<CallContext>> entries_;  // by id
  std::size_t sweep_at_ = 64;                                         // entries
};

}  // namespace weft::rpc
