// RRefTable: who holds which fork (reference) of which value owned here, and which forks of this
// worker are still on their way to another. It learns both from the RRef messages of the agent.
//
// torch's RRefContext knows the forks of an owned value, but not who holds them, so it cannot
// release what a lost peer held. The table adds the holders, and keeps torch's table right whatever
// the order and number of messages:
//
// - The end of a fork may overtake its beginning, and either may come twice (torch sends a message
//   again when its answer is late). An ended fork never comes back.
// - releaseForks() releases the forks of a lost peer; messages and requests of its lost life add
//   none afterwards. A `Seen` number, taken when a message arrives, is smaller than that of the
//   peer's last loss exactly if the message is of a former life.
//
// The table knows no torch: it tells a ForkTable what to do.
//
// Threads: any. The caller's thread drops, without a lock, what the end of a fork gives back (the
// value, if it was the last fork); so never end forks on the loop thread.
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
  // These two are called with the table locked: they must not wait or run user code. They are
  // idempotent.
  virtual void addFork(const ForkIds& ids) = 0;
  virtual Dropped removeFork(const ForkIds& ids) = 0;
  // The child has `fork`, or never will: nothing is kept alive for it any more. Idempotent.
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

  // Take it on the loop thread when a message arrives, and give it to the members below.
  Seen now() const noexcept { return losses_.load(std::memory_order_acquire); }

  // Whether a message that came at `seen` is of a life of `peer` that is lost.
  bool isOfLostLife(Rank peer, Seen seen) const;

  // RREF_FORK_REQUEST came from `holder`.
  void onForkRequest(const ForkIds& ids, Rank holder, Seen seen);
  // A remote call of `holder` made a value here; torch has added its fork already.
  void onRemoteResult(const ForkIds& ids, Rank holder, Seen seen);
  // RREF_USER_DELETE came.
  void onUserDelete(const ForkIds& ids);
  // RREF_CHILD_ACCEPT came.
  void onChildAccept(const RRefKey& fork);

  // An RRef goes to `to` inside a message, and torch has noted it. Call it before the message is
  // sent, and undoSend() when the message could not be sent.
  void onSend(const PickledRRef& rref, Rank to);
  void undoSend(const PickledRRef& rref);

  // The peer is lost: its earlier messages are void from now on. Short; the loop thread may call
  // it.
  void lose(Rank peer);
  // Releases the forks of the peer's lost lives. Returns how many.
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
  ForkTable::Dropped put(const ForkIds& ids, const Entry& entry);

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
