// ShutdownBarrier: the agreement of a static group to stop, when all workers have arrived and no
// call is in flight. It goes through the Store, so it works under every request policy.
//
// In each round each worker posts how many calls it has in flight, and one more if it has made any
// since the last round. When all have posted zero, the group is done. A lost worker is not waited
// for.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "rpc_backend/group/group.h"

namespace weft::rpc {

class ShutdownBarrier {
 public:
  // `index`: the number of barriers this agent had before; the same on all workers.
  ShutdownBarrier(AgentContext& context, Group& group, c10::intrusive_ptr<c10d::Store> store,
                  int index, int world);

  // Blocks until the group is done; `timeout` 0: as long as the missing workers live.
  // Throws c10::Error when the timeout runs out, naming who is missing. Returns the
  // ranks that were lost on the way.
  std::set<std::int32_t> wait(milliseconds timeout);

  // Rank 0 serves the Store: it stays until the others have read the result, at most `wait`.
  void linger(milliseconds wait);

 private:
  std::string key(int round, worker_id_t rank) const;
  std::string doneKey(worker_id_t rank) const;
  std::vector<worker_id_t> others() const;  // those not lost so far
  // The sum of the round's counts; -1 when somebody has already seen the end.
  std::int64_t collect(int round, milliseconds timeout);

  AgentContext& context_;
  Group& group_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  const int world_;
  std::set<std::int32_t> lost_;
};

}  // namespace weft::rpc
