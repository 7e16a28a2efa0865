// ShutdownBarrier: the agreement of a static group to stop, when all workers have arrived and no
// call is in flight. It goes through the Store, so it works under every request policy.
//
// In each round each worker posts how many calls it has in flight, and one more if it has made any
// since the last round. When all have posted zero, the group is done. In the end each posts whom it
// has lost, and whether it was started again.
//
// Each round is decided once, and all workers follow the decision. The worker that posts last
// decides, or one that sees that only lost workers have not posted. A counter holds how many have
// posted and the sum of what they posted, so nobody reads what each has posted unless somebody is
// lost. In a large group some workers look for the lost and the others give them time, so that not
// all ask the Store for all.
//
// A worker that was lost and is back takes part again, from the first round that is not decided. If
// it was started again, it posts in place of its former life, which may have died before it was
// counted: so it looks at what each has posted.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <set>
#include <string>
#include <vector>

#include "rpc_backend/group/group.h"
#include "transport/base/deadline.h"

namespace weft::rpc {

class ShutdownBarrier {
 public:
  // `index`: the number of barriers this agent had before; the same on all workers. `timeout`: of
  // the whole, from now; 0: as long as the missing workers live.
  ShutdownBarrier(AgentContext& context, Group& group, c10::intrusive_ptr<c10d::Store> store,
                  int index, int world, milliseconds timeout);

  // Blocks; once. Returns the ranks that this worker or another has lost, or that were started
  // again: those do not know how often torch has gathered before. After the `last` barrier
  // rank 0, which serves the Store, stays until the others have confirmed that they need it no
  // more, at most peer_timeout. Throws c10::Error when the timeout runs out, naming who is missing.
  std::vector<std::int32_t> pass(bool last);
  // How many barriers the group has passed, for a worker `who` that is started again. Throws
  // c10::Error for a count that is none.
  static int passedBy(c10d::Store& store, const std::string& who);

 private:
  // Waits until no call is in flight at any worker that lives.
  void waitForCalls();
  // Those lost; and those who were started again, each as its rank plus world_.
  std::set<std::int32_t> agreeOnLost();
  void linger(milliseconds wait);
  std::string key(const std::string& what, std::int32_t rank) const;
  std::vector<std::int32_t> others() const;  // those not lost so far
  // The first `most` of `ranks` who have not posted.
  std::vector<std::int32_t> absent(const std::string& what, const std::vector<std::int32_t>& ranks,
                                   std::size_t most = SIZE_MAX) const;
  std::string describe(const std::vector<std::int32_t>& ranks) const;

  void post(const std::string& what, const std::set<std::int64_t>& numbers);
  // Waits until `what` is decided; returns the decision.
  std::string await(const std::string& what);
  // Whether those who are not lost have all posted.
  bool allPosted(const std::string& what) const;
  // Decides by what has been posted. The first decision counts.
  void decide(const std::string& what);
  void noticeLost();
  // Makes sure that the loss of those who have not posted would be noticed, some at a time.
  void probe(const std::string& what);
  milliseconds timeLeft() const;

  AgentContext& context_;
  Group& group_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const int index_;
  const std::string prefix_;
  const int world_;
  const milliseconds timeout_;
  const transport::Deadline deadline_;
  const std::string life_;         // of this barrier, among those of this rank
  bool in_place_ = false;          // a former life of this rank has posted
  std::set<std::int32_t> lost_;    // by this worker
  std::set<std::int32_t> probed_;  // these were called, so that their loss would be noticed
};

}  // namespace weft::rpc
