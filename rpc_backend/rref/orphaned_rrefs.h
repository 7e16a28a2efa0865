// OrphanedRRefs: which values lived in a former life of their owner, and are gone although that
// worker is back.
//
// A value that this worker asked for is recognised by its number: all numbers given out before the
// owner was lost are of the owner's former life, except those whose call was sent only afterwards.
// A value that somebody else asked for is remembered.
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
#include "rpc_backend/torch_private/torch_rrefs.h"
#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

class OrphanedRRefs {
 public:
  explicit OrphanedRRefs(Rank self) : self_(self) {}

  // Loop thread: the peer is lost. Remembers its values that are referred to here. Returns
  // references for another thread to drop, where they may be the last.
  std::vector<torch_rrefs::User> onPeerLost(Rank peer);

  // A message is about to be written to `to`: the value that it creates, if any, is of this life.
  void onTransmit(const Message& message, Rank to);

  bool contains(const RRefKey& value, Rank owner) const;
  // The orphan that a message to `to` asks for or speaks of; or among RRefs that a message carries.
  std::optional<RRefKey> findIn(const Message& message, Rank to) const;
  std::optional<PickledRRef> findAmong(const std::vector<PickledRRef>& carried) const;

 private:
  const Rank self_;
  std::atomic<bool> any_loss_{false};
  mutable std::mutex mutex_;  // guards the three below
  std::unordered_set<RRefKey, RRefKeyHash> orphans_;
  std::unordered_map<Rank, std::int64_t> ids_at_loss_;  // ids this worker had made by then
  // Values with a lower number all the same, and their owners.
  std::unordered_map<RRefKey, Rank, RRefKeyHash> sent_later_;
};

}  // namespace weft::rpc
