// ShutdownBarrier: the agreement of a static group to stop, when all workers have arrived and no
// call is in flight. It goes through the Store, so it works under every request policy.
//
// In each round each worker posts how many calls it has in flight, and one more if it has made any
// since the last round. When all have posted zero, the group is done. A lost worker is not waited
// for. In the end each posts whom it has lost, so that all go on alike.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "rpc_backend/group/group.h"
#include "transport/base/deadline.h"

namespace weft::rpc {

// Its methods block, and are called in the order in which they stand. The first two throw
// c10::Error when the timeout runs out, naming who is missing.
class ShutdownBarrier {
 public:
  // `index`: the number of barriers this agent had before; the same on all workers. `timeout`: of
  // the whole, from now; 0: as long as the missing workers live.
  ShutdownBarrier(AgentContext& context, Group& group, c10::intrusive_ptr<c10d::Store> store,
                  int index, int world, milliseconds timeout);

  // Until no call is in flight at any worker that lives.
  void waitForCalls();
  // The ranks that this worker or another has lost.
  std::set<std::int32_t> agreeOnLost();
  // This worker needs the Store no more.
  void confirm();
  // Rank 0 serves the Store: it stays until the others have confirmed, at most `wait`.
  void linger(milliseconds wait);

 private:
  std::string key(const std::string& what, worker_id_t rank) const;
  std::vector<worker_id_t> others() const;  // those not lost so far
  // Until `seen` is true of each of the others, or it is lost; each is to post `awaited` soon.
  void awaitOthers(const std::string& awaited, const std::function<bool(worker_id_t)>& seen);
  // The sum of the round's counts; -1 when somebody has already seen the end.
  std::int64_t collect(const std::string& round);
  // Posts what that worker has lost, for itself or, once it is given up, in its place. The first
  // post counts, and is returned: so all decide alike.
  std::set<std::int32_t> postLost(worker_id_t rank, const std::set<std::int32_t>& lost);
  milliseconds timeLeft() const;

  AgentContext& context_;
  Group& group_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  const int world_;
  const milliseconds timeout_;
  const transport::Deadline deadline_;
  std::set<std::int32_t> lost_;  // by this worker
};

}  // namespace weft::rpc
