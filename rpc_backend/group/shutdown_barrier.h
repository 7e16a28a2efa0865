// The agreement of a static group to stop: all workers have arrived and no call is in
// flight anywhere. Through the Store, so that it works under every request policy.
//
// Rounds: each worker posts how many calls it has in flight, and one more if it has made any
// since the round before; when all posted zero the group is done, else another round follows. A
// worker that is lost is not waited for.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace weft::rpc {

class ShutdownBarrier {
 public:
  struct Hooks {
    std::function<std::int64_t()> active_calls;  // of this worker; waits for zero first
    std::function<std::int64_t()> calls_sent;    // by this worker, ever
    std::function<bool(std::int32_t)> is_lost;   // has that peer been declared lost?
    std::function<void(std::int32_t)> probe;     // make sure that its loss would be noticed
    std::function<std::string(std::int32_t)> describe;
  };

  // `index`: the number of barriers this agent had before; the same on all workers.
  ShutdownBarrier(c10::intrusive_ptr<c10d::Store> store, int index, std::int32_t rank, int world,
                  Hooks hooks);

  // Blocks until the group is done; `timeout` 0: as long as the missing workers live.
  // Throws c10::Error when the timeout runs out, naming who is missing. Returns the
  // ranks that were lost on the way.
  std::set<std::int32_t> wait(std::chrono::milliseconds timeout);

  // Rank 0 serves the Store: it stays until the others have read the result, at most `wait`.
  void linger(std::chrono::milliseconds wait);

 private:
  std::string key(int round, std::int32_t rank) const;
  std::string doneKey(std::int32_t rank) const;
  // The sum of the round's counts; -1 when somebody has already seen the end.
  std::int64_t collect(int round, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  const std::int32_t rank_;
  const int world_;
  const Hooks hooks_;
  std::set<std::int32_t> lost_;
};

}  // namespace weft::rpc
