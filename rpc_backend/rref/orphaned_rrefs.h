// OrphanedRRefs: which values lived in a former life of their owner, and are gone although that
// worker is back.
//
// A value that this worker asked for is told by its number: all numbers that it had given out when
// the owner was lost are of the former life. A value that somebody else asked for is remembered.
//
// Threads: any. While no peer was lost, a look-up costs one load.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/rref/torch_rrefs.h"
#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

class OrphanedRRefs {
 public:
  explicit OrphanedRRefs(Rank self) : self_(self) {}

  // Loop thread: the peer is lost. Remembers its values that are referred to here. Returns
  // references for another thread to drop, where they may be the last.
  std::vector<torch_rrefs::User> onPeerLost(Rank peer);

  bool contains(const RRefKey& value, Rank owner) const;
  // The orphan that a message to `to` asks for or speaks of; or among RRefs that a message carries.
  std::optional<RRefKey> findIn(const Message& message, Rank to) const;
  std::optional<PickledRRef> findAmong(const std::vector<PickledRRef>& carried) const;

 private:
  const Rank self_;
  std::atomic<bool> any_loss_{false};
  mutable std::mutex mutex_;  // guards the two below
  std::unordered_set<RRefKey, RRefKeyHash> orphans_;
  std::unordered_map<Rank, std::int64_t> ids_at_loss_;  // ids this worker had made by then
};

}  // namespace weft::rpc
