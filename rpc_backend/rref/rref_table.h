// RRefTable: who holds which fork (reference) of which value owned here, and which forks of this
// worker are still on their way to another. It learns both from the RRef messages of the agent.
//
// torch's RRefContext knows the forks of an owned value, but not who holds them, so it cannot
// release what a lost peer held. The table adds the holders, and keeps torch's table right whatever
// the order and number of messages:
//
// - The end of a fork may overtake its beginning, and either may come twice (torch sends a message
//   again when its answer is late). An ended fork never comes back.
// - Whoever holds the key may name any ids. So a fork is held by each worker that says so, and goes
//   from torch's table when all of them have ended it: none ends what another holds.
// - releaseForks() releases the forks of a lost peer; messages and requests of its lost life add
//   none afterwards. The count of losses when a message comes is smaller than the peer's last loss
//   exactly if the message is of a former life.
//
// The table knows no torch: it tells a ForkTable what to do.
//
// Threads: any. The caller's thread drops, without a lock, what the end of a fork gives back.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
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
  using LossCount = std::uint64_t;

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

  // How many losses of peers there were. Take it on the loop thread when a message comes, and give
  // it to the members below as `losses_then`.
  LossCount lossCount() const noexcept { return losses_.load(std::memory_order_acquire); }

  // Whether a message that came then is of a life of `peer` that is lost.
  bool isOfLostLife(Rank peer, LossCount losses_then) const;

  // RREF_FORK_REQUEST came from `holder`.
  void onForkRequest(const ForkIds& ids, Rank holder, LossCount losses_then);
  // A remote call of `holder` is about to make a value here. Until it adds its fork, torch does not
  // have that (it would throw), whoever says that it holds it.
  void onRemoteCall(const ForkIds& ids, Rank holder, LossCount losses_then);
  // It made the value; torch has added its fork already.
  void onRemoteResult(const ForkIds& ids, Rank holder, LossCount losses_then);
  // It failed.
  void onRemoteFailure(const ForkIds& ids);
  // RREF_USER_DELETE came from `holder`.
  void onUserDelete(const ForkIds& ids, Rank holder);
  // RREF_CHILD_ACCEPT came from `holder`, to whom the fork must have gone.
  void onChildAccept(const RRefKey& fork, Rank holder);

  // An RRef goes to `to` inside a message, and torch has noted it. Call it before the message is
  // sent, and undoSend() when the message could not be sent.
  void beforeSend(const PickledRRef& rref, Rank to);
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
  // A fork, and who says that it holds it.
  struct Claim {
    RRefKey fork;
    Rank holder = -1;
    auto operator<=>(const Claim&) const = default;
  };
  struct Entry {
    RRefKey value;
    LossCount losses_then = 0;
    Clock::time_point since{};
    // torch may repeat a fork request, and a remote call is followed by its result: the end of this
    // fork is remembered.
    bool may_repeat = false;
  };
  struct Child {
    Rank to = -1;
    LossCount losses_then = 0;
  };

  bool ofLostLife(Rank peer, LossCount losses_then) const;
  bool isDead(const Claim& claim) const;
  void markDead(const Claim& claim);
  bool isClaimed(const ForkIds& ids) const;
  // These return what is to be dropped without the lock.
  ForkTable::Dropped removeUnclaimed(const ForkIds& ids);
  ForkTable::Dropped removeAnyway(const ForkIds& ids);
  ForkTable::Dropped put(const Claim& claim, const Entry& entry);

  ForkTable& table_;
  const Rank self_;
  std::atomic<LossCount> losses_{0};

  mutable std::mutex mutex_;
  std::map<Claim, Entry> forks_;
  std::unordered_map<RRefKey, Child, RRefKeyHash> children_;
  std::unordered_map<Rank, LossCount> lost_at_;  // the number of its last loss
  std::map<Claim, LossCount> dead_;              // those that ended, and when
  std::deque<Claim> dead_order_;
  std::unordered_map<RRefKey, Clock::time_point, RRefKeyHash> users_;
  Counts counts_;
};

}  // namespace weft::rpc
