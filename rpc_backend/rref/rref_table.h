// Who holds which fork (reference) of which value owned here, and which forks of this worker's
// own are still on their way to another: what the RRef messages that pass the agent say.
//
// torch's RRefContext knows the forks of an owned value, but not who holds them; so it can
// neither release what a lost peer held nor say whom memory waits for. The table adds that, and
// keeps torch's table right whatever order or number the messages come in:
//
// - a fork's end may overtake its beginning, and either may come twice (torch re-sends a message
//   whose answer is late): an ended fork never comes back;
// - a lost peer's forks are released by releaseForks(), and what was still on its way from it, or
// runs here
//   for it, adds none afterwards. `Seen` tells the lives of a peer apart: a number taken when
//   a message arrives is smaller than the peer's last loss exactly if the message is of
//   a former life.
//
// No torch here: the table tells a ForkTable what to do. Any thread. What the table gives back when
// a fork ends (the value, if it was the last) is dropped without a lock held, on the caller's
// thread: never call what ends forks on the loop thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

// torch's side: the forks of the values owned here, and the children on their way.
class ForkTable {
 public:
  using Dropped = std::shared_ptr<void>;
  virtual ~ForkTable() = default;
  // These two are called with the table locked: they may wait for nothing and run no user code.
  // Both do nothing when it is so already.
  virtual void addFork(const ForkIds& ids) = 0;
  virtual Dropped removeFork(const ForkIds& ids) = 0;
  // The child that got `fork` has it, or never will: nothing need be kept alive for it. Idempotent.
  virtual void childSettled(const RRefKey& fork) = 0;
};

class RRefTable {
 public:
  using Clock = std::chrono::steady_clock;
  using Seen = std::uint64_t;

  struct Holding {
    ForkIds ids;
    Rank holder = -1;
    Clock::time_point since{};
  };
  struct Counts {
    std::uint64_t released = 0;  // forks of lost peers
    std::uint64_t repeats = 0;   // messages that had been acted on before, or came too late
  };

  RRefTable(ForkTable& table, Rank self) : table_(table), self_(self) {}

  // To be taken on the loop thread when a message arrives, and given with what it says.
  Seen now() const noexcept { return losses_.load(std::memory_order_acquire); }

  // What came at `seen` is of a life of `peer` that is lost.
  bool isOfLostLife(Rank peer, Seen seen) const;

  // RREF_FORK_REQUEST came from `holder`.
  void onForkRequest(const ForkIds& ids, Rank holder, Seen seen);
  // A remote call of `holder` made a value here; torch has added its fork already.
  void onRemoteResult(const ForkIds& ids, Rank holder, Seen seen);
  // RREF_USER_DELETE came.
  void onUserDelete(const ForkIds& ids);
  // RREF_CHILD_ACCEPT came.
  void onChildAccept(const RRefKey& fork);

  // An RRef goes to `to` inside a message; torch has noted it. To be called before the message is
  // sent; undoSend() when it could not be.
  void onSend(const PickledRRef& rref, Rank to);
  void undoSend(const PickledRRef& rref);

  // The peer is lost: from now on its messages of before are void. Short; the loop thread may.
  void lose(Rank peer);
  // Releases what the peer's lost lives held. Returns how many forks.
  std::size_t releaseForks(Rank peer);

  // References of this worker to values of others, for their age only.
  void onUserSeen(const RRefKey& fork);
  void onUserGone(const RRefKey& fork);

  std::vector<Holding> holdings() const;
  std::unordered_map<RRefKey, Clock::time_point, RRefKeyHash> usersSince() const;
  Counts counts() const;

 private:
  struct Entry {
    RRefKey value;
    Rank holder = -1;
    Seen seen = 0;
    Clock::time_point since{};
    bool asked_for = false;  // by a fork request, which may come again
  };
  struct Child {
    Rank to = -1;
    Seen seen = 0;
  };

  bool ofLostLife(Rank peer, Seen seen) const;
  bool isDead(const RRefKey& fork) const;
  void markDead(const RRefKey& fork);

  ForkTable& table_;
  const Rank self_;
  std::atomic<Seen> losses_{0};

  mutable std::mutex mutex_;
  std::unordered_map<RRefKey, Entry, RRefKeyHash> forks_;  // by fork id
  std::unordered_map<RRefKey, Child, RRefKeyHash> children_;
  std::unordered_map<Rank, Seen> lost_at_;               // the number of its last loss
  std::unordered_map<RRefKey, Seen, RRefKeyHash> dead_;  // ended forks, and when
  std::deque<RRefKey> dead_order_;
  std::unordered_map<RRefKey, Clock::time_point, RRefKeyHash> users_;
  Counts counts_;
};

}  // namespace weft::rpc
