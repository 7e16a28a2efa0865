// CallTable: the calls of an agent that wait for an answer. Whoever takes a call out of it
// completes its future. Answer, timeout, lost peer and shutdown race for a call, and exactly one of
// them gets it.
//
// Threads: any. The table calls nothing with its lock held.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/wire/rref_wire.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

using Clock = CallContext::Clock;

struct PendingCall {
  std::uint64_t id = 0;  // given by add()
  FuturePtr future;
  worker_id_t peer = -1;
  MessageType type{};
  milliseconds timeout{0};  // 0: never
  bool inherited = false;   // the timeout is the rest of that of the call in which this was made
  // The deadline of the call in which this was made, for the callbacks of this one's future.
  Clock::time_point outer_deadline = CallContext::kNever;
  Clock::time_point started{};
  bool counted = false;            // it has room that waitForRoom() gave
  bool quick = false;              // a quick call: the thread that reads its answer takes it
  std::optional<RRefKey> fetched;  // the value for which it asks the value's owner
  std::thread::id awaited_by;      // the thread that waits in send() for its fetch, if one does
  std::optional<ForkIds> created;  // the reference that it is to create, if that can be read
  std::optional<std::int64_t> context;  // of autograd, if peers are distrusted and it is in one
  InlineWaiter::Handle waiter;          // the thread that waits for it, if that is known
  bool isAwaited() const { return awaited_by != std::thread::id(); }
  Clock::time_point deadline() const {
    return timeout.count() == 0 ? Clock::time_point::max() : started + timeout;
  }
};

// A call that waits for its answer, for people to read.
struct WaitingCall {
  worker_id_t peer = -1;
  CallKind kind{};
  Clock::time_point started{};
  milliseconds timeout{0};  // 0: never
};

class CallTable {
 public:
  // The number of the first call. Before any is made.
  void startAt(std::uint64_t id) { next_id_ = id; }
  // Takes room for one more call to `peer`, of which at most `limit` have room; waits until
  // `deadline` for one of them to end. Threads get room in the order in which they come. kDone:
  // then add() a call that is `counted`. Without the GIL; not on the loop thread, which ends calls.
  transport::Waited waitForRoom(worker_id_t peer, std::size_t limit, Clock::time_point deadline);
  // Gives the room of a call back that was not added.
  void giveRoomBack(worker_id_t peer);
  std::size_t waitingForRoom(worker_id_t peer) const;
  std::uint64_t add(PendingCall call);  // returns the call's id, unique for this agent
  // Takes the call only if it waits for `peer`, because nobody else may answer it.
  std::optional<PendingCall> take(std::uint64_t id, worker_id_t peer);
  bool waits(std::uint64_t id, worker_id_t peer) const;
  std::vector<PendingCall> takeAllOf(worker_id_t peer);
  // Takes the call that completes this future.
  std::optional<PendingCall> takeCallOf(const JitFuture& future);
  std::vector<PendingCall> takeFetches(const RRefKey& value);
  std::vector<PendingCall> takeAll();
  // Takes what has expired at `now`; `next` becomes the earliest deadline that remains.
  std::vector<PendingCall> takeExpired(Clock::time_point now, Clock::time_point& next);
  // The oldest first, at most `most`.
  std::vector<WaitingCall> oldest(std::size_t most) const;

 private:
  template <typename Predicate>
  std::vector<PendingCall> takeIf(Predicate predicate);
  // Room for calls to one peer.
  struct Room {
    std::size_t taken = 0;
    std::list<std::condition_variable> waiting;  // in order of arrival
    void wakeFirst() {
      if (!waiting.empty()) waiting.front().notify_one();
    }
    void giveBack() {
      --taken;
      wakeFirst();
    }
  };
  // With the lock, which is free while it waits.
  static transport::Waited waitInLine(Room& room, std::size_t limit,
                                      std::unique_lock<std::mutex>& lock,
                                      Clock::time_point deadline);
  void onTaken(const PendingCall& call);

  mutable std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, PendingCall> calls_;
  // Ids in calls_. Thousands of creations may fail at once: none looks through all calls.
  std::unordered_multimap<RRefKey, std::uint64_t, RRefKeyHash> fetches_;
  std::unordered_map<worker_id_t, Room> rooms_;  // no entry is erased
};

}  // namespace weft::rpc
