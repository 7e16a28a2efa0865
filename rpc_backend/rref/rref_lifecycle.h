// RRefLifecycle: joins a worker's RRefTable to the messages of its agent and to torch's
// RRefContext.
//
// It serves three of torch's RRef messages (RREF_USER_DELETE, RREF_FORK_REQUEST, RREF_CHILD_ACCEPT)
// instead of torch's callback. It reads the rest of what the table must know from outgoing
// messages: answers to remote calls, and RRefs pickled into any message. For them it looks through
// every payload.
//
// Threads: worker threads, unless a member says otherwise.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/rref/early_values.h"
#include "rpc_backend/rref/orphaned_rrefs.h"
#include "rpc_backend/rref/rref_report.h"
#include "rpc_backend/rref/rref_table.h"
#include "rpc_backend/threads/worker_pool.h"
#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::rpc {

// What only a Python process can do with Python values. Any thread, no GIL held.
struct RRefHooks {
  // Releases a value, with the GIL. Without this hook a Python value is never released.
  DropRRef drop = [](torch_rrefs::RRefPtr rref) { (void)rref.release(); };
  DescribeValue describe;
};

class RRefLifecycle : private ForkTable {
 public:
  using LossCount = RRefTable::LossCount;
  using Carried = std::vector<PickledRRef>;

  // Values are released on `droppers`: a destructor may be user code that makes calls, and on a
  // thread that serves requests it could wait for calls that wait for that thread.
  RRefLifecycle(Rank self, RRefHooks hooks, WorkerPool& droppers)
      : self_(self),
        hooks_(std::move(hooks)),
        droppers_(droppers),
        early_(self),
        table_(*this, self) {}

  // Whether it is one of the three messages that are served here.
  static bool isRRefMessage(MessageType type) noexcept {
    return type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST ||
           type == MessageType::RREF_CHILD_ACCEPT;
  }
  // What answers each of them.
  static MessagePtr ack();

  // As RRefTable::lossCount(); `losses_then` below: what it was when the message came.
  LossCount lossCount() const noexcept { return table_.lossCount(); }

  // Serves one of them. False when it is malformed. Worker thread; the loop thread for a
  // deletion, which takes a few short locks and has a dropper release the value.
  bool serve(MessageType type, std::span<const char> payload, Rank from, LossCount losses_then);
  // A remote call with that payload is about to run: returns what it is to create. Nothing: that
  // cannot be read, or an id in it is of another worker than `from`. Worker thread.
  std::optional<ForkIds> onRemoteCall(std::span<const char> payload, Rank from,
                                      LossCount losses_then);
  // An answer is about to go out to `to`. `losses_then`: of its request. `created`: what
  // onRemoteCall() returned for that. Worker thread.
  void beforeAnswer(const Message& answer, Rank to, LossCount losses_then,
                    const std::optional<ForkIds>& created);
  // What `from` was to create here will not be: its call does not run. Not on the loop thread.
  void onNotCreated(const RRefKey& value, Rank from, const std::string& why);
  // The same for each early value (early_values.h) that `which` says.
  void failEarly(const std::function<bool(const RRefKey&)>& which, const std::string& why);
  // A peer has asked for this value before it is there: tells it if it will not be. Not on the loop
  // thread.
  void onFetch(const RRefKey& value);
  // Somebody here is about to wait for this worker's own value.
  void onAwaited(const RRefKey& value) { early_.await(value); }
  // A message is about to go out to `to`: returns the RRefs in it, nearly always none. Call it on
  // the thread that made the message, before it is sent; call undo() when it could not be sent.
  Carried beforeSend(const Message& message, Rank to);
  void undo(const Carried& carried);
  // The same for an RRef of a message that could not even be pickled. Any thread.
  void undoFork(const PickledRRef& rref);
  // Messages that tell `from` that the RRefs in its message, which nobody here will read, are not
  // held here; without them its shutdown waits 100 s. For RRefs that `from` owns or passes on, the
  // first `most` of them.
  static std::vector<MessagePtr> declining(std::span<const char> payload, Rank from,
                                           std::size_t most);
  // An answer to a call of this worker came.
  void onAnswerReceived(MessageType type, std::span<const char> payload);

  // Loop thread: the peer is lost.
  void onPeerLost(Rank peer) { table_.lose(peer); }
  // Whether what came then is of a life of `peer` that is lost.
  bool isOfLostLife(Rank peer, LossCount losses_then) const {
    return table_.isOfLostLife(peer, losses_then);
  }
  // Worker thread, some time after onPeerLost().
  void releaseForks(Rank peer);
  // Ends torch's waiting for what a lost owner was to confirm; torch's shutdown would wait 100 s
  // for it. What a call of this worker was to create is left to the end of that call. Worker
  // thread, when nothing sent to that owner is in flight any more. `orphans`: the owner is back and
  // may confirm what is not among them; null: it is not back.
  void settleUsersOf(Rank owner, const OrphanedRRefs* orphans);

  // The rows of weft.rref_report() (rref_report.h). Any thread, no GIL held.
  std::vector<RRefRow> report() const;
  RRefTable::Counts counts() const { return table_.counts(); }

 private:
  // Keeps the early values of RRefs in a message of this worker to itself.
  void keepEarly(std::span<const char> payload);
  void addFork(const ForkIds& ids) override;
  Dropped removeFork(const ForkIds& ids) override;
  void childSettled(const RRefKey& fork) override;
  // Drops `rref` on a dropper, by the hook, when the result goes: at once where nobody takes it.
  Dropped dropLater(torch_rrefs::RRefPtr rref);
  // Owns `rref`, and drops it by the hook where it holds a Python value.
  std::shared_ptr<void> keep(torch_rrefs::RRefPtr rref) const;

  const Rank self_;
  const RRefHooks hooks_;
  WorkerPool& droppers_;
  EarlyValues early_;
  RRefTable table_;
};

}  // namespace weft::rpc
