// EarlyValues: values of this worker that a reference came for before the call that creates them
// has ended.
//
// torch makes such a value, still empty, when it reads the reference, and drops it with the last
// reference that it counts. The creation then makes another one, and whoever has the first waits
// for ever. So the first is kept until its creation has ended, by one more reference in torch's
// table, which has the value's own id (rref_context.cpp, addSelfAsFork, does the same for calls of
// a worker to itself).
//
// Threads: any, but not the loop thread for what ends a wait. No lock is held while a value goes.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "rpc_backend/rref/failed_creations.h"
#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::rpc {

class EarlyValues {
 public:
  using RRefPtr = torch_rrefs::RRefPtr;

  explicit EarlyValues(Rank self) : self_(self) {}

  // Torch is about to count one reference to this value less. Keeps the value if another worker
  // creates it and has not done so yet.
  void keep(const RRefKey& value);
  // Somebody here is about to wait for it: as keep(), or ends the wait if it has failed.
  void await(const RRefKey& value);
  // Why it has no value, if its creation has failed.
  std::optional<std::string> whyFailed(const RRefKey& value) const { return failed_.find(value); }
  // Its creation has ended, and torch knows how. Like the two below it returns what nothing else
  // refers to: the caller drops it.
  [[nodiscard]] RRefPtr end(const RRefKey& value);
  // It made no value, and torch may not know that. Whoever waits for it gets an error.
  [[nodiscard]] RRefPtr fail(const RRefKey& value, const std::string& why);
  // The same for each early one that `which` says.
  [[nodiscard]] std::vector<RRefPtr> failAll(const std::function<bool(const RRefKey&)>& which,
                                             const std::string& why);

 private:
  const Rank self_;
  FailedCreations failed_;
  std::mutex mutex_;  // guards the one below
  std::unordered_set<RRefKey, RRefKeyHash> kept_;
};

}  // namespace weft::rpc
