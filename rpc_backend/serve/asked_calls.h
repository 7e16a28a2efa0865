// AskedCalls: the requests of one peer that wait or run here, to find one that its caller gives up.
//
// A request is entered when it comes and never taken out: it goes from memory with its last user,
// and its entry with one of the next sweeps. So a request costs no lock, and an allocation only
// where more are here than ever before. Peers number their requests upwards, so that entries are
// sorted as they come, nearly always.
//
// Threads: one at a time. It keeps no request alive.
#pragma once

#include <cstdint>
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
  struct Entry {
    std::uint64_t id;
    std::weak_ptr<CallContext> call;
  };
  std::vector<Entry> entries_;  // by id
  std::size_t sweep_at_ = 64;   // entries
};

}  // namespace weft::rpc
