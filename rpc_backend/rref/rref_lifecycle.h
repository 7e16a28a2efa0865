// RRefLifecycle: the RRefTable of a worker, between the messages of its agent and torch's
// RRefContext.
//
// Three of torch's RRef messages (RREF_USER_DELETE, RREF_FORK_REQUEST, RREF_CHILD_ACCEPT) are
// served here instead of by torch's callback. The rest of what the table must know, the
// ledger reads from messages on their way out: answers to remote calls, and RRefs
// pickled into any message. All of it on worker threads; what an ordinary call pays is a comparison
// of its type and one of torch's count of ids.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rpc_backend/rref/rref_table.h"
#include "transport/base/api.h"

namespace weft::rpc {

struct RRefValue {
  std::string type;
  std::uint64_t bytes = 0;  // of the tensors in it
};

// What this library can't do to values of Python, which it does not know. Any thread, no GIL held.
struct RRefHooks {
  // Lets go of a value, with the GIL. Without this hook a Python value is never let go of.
  std::function<void(c10::intrusive_ptr<torch::distributed::rpc::RRef>)> drop;
  // Runs a task on a thread that nobody waits for. A value's destructor may be a program's own, and
  // make calls: on a thread that serves requests it could wait for calls that wait for that thread.
  // Without this hook a value is let go of by the thread that ends its last fork.
  std::function<void(std::function<void()>)> later;
  std::function<RRefValue(const c10::IValue&)> describe;
};

// A line of rref_report(): a value owned here, or a reference held here to a value elsewhere.
struct RRefRow {
  RRefKey id;
  bool owned = false;
  std::string type;
  Rank owner = -1;
  std::vector<Rank> holders;           // of a value owned here, one per fork, ordered; -1: unknown
  std::optional<double> age;           // seconds since Weft saw it first; nothing when it did not
  std::optional<std::uint64_t> bytes;  // of a value owned here, when it is ready
};

class RRefLifecycle : private ForkTable {
 public:
  using Message = torch::distributed::rpc::Message;
  using MessageType = torch::distributed::rpc::MessageType;
  using Seen = RRefTable::Seen;
  using Carried = std::vector<PickledRRef>;

  RRefLifecycle(Rank self, RRefHooks hooks);

  // One of the three messages the ledger serves.
  static bool isControl(MessageType type) noexcept {
    return type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST ||
           type == MessageType::RREF_CHILD_ACCEPT;
  }
  // What answers each of them.
  static c10::intrusive_ptr<Message> ack();

  Seen now() const noexcept { return table_.now(); }

  // Serves a control message. False when it is malformed. Worker thread.
  bool serve(MessageType type, std::span<const char> payload, Rank from, Seen seen);
  // An answer goes out to `to`, whose request came at `seen`. Worker thread.
  void onAnswer(const Message& answer, Rank to, Seen seen);
  // A message goes out to `to`: returns the RRefs in it, nearly always none. To be called on the
  // thread that made the message, before it is sent; undo() when it could not be.
  Carried onSend(const Message& message, Rank to);
  void undo(const Carried& carried);
  // What tells `from` that the RRefs in a message of it, which nobody here will ever read, are not
  // held here: else its shutdown would wait 100 s for news of them. Its parent or owner only.
  static std::vector<c10::intrusive_ptr<Message>> declining(std::span<const char> payload,
                                                            Rank from);
  // An answer to a call of this worker came.
  void onAnswerReceived(MessageType type, std::span<const char> payload);

  // Loop thread.
  void lose(Rank peer);
  // Worker thread, soon after lose(): the values that peer owned are gone, also when it comes back.
  void orphan(Rank owner);
  bool isOfLostLife(Rank peer, Seen seen) const { return table_.isOfLostLife(peer, seen); }
  // The value of a former life of its owner that the message to `to` asks for or speaks of; or
  // among `carried`, with its owner. Nearly always none, at the cost of one load.
  std::optional<RRefKey> orphanIn(const Message& message, Rank to) const;
  std::optional<PickledRRef> orphanAmong(const Carried& carried) const;
  // Worker thread, some time after lose().
  void releaseForks(Rank peer);
  // Ends torch's waiting for what a lost owner was to confirm: with it, torch's shutdown
  // would wait 100 s. Worker thread, when nothing sent to that owner is in flight any more.
  // `back`: a new life of it may have confirmed, or will, what is not an orphan.
  void settleUsersOf(Rank owner, bool back);

  // Looks into each value for its size: no more for a hot path than printing it.
  std::vector<RRefRow> report();
  RRefTable::Counts counts() const { return table_.counts(); }

 private:
  void addFork(const ForkIds& ids) override;
  Dropped removeFork(const ForkIds& ids) override;
  void childSettled(const RRefKey& fork) override;
  std::shared_ptr<void> keep(c10::intrusive_ptr<torch::distributed::rpc::RRef> rref) const;

  bool isOrphan(const RRefKey& value, Rank owner) const;

  const Rank self_;
  const RRefHooks hooks_;
  std::atomic<bool> has_orphans_{false};
  mutable std::mutex orphans_mutex_;  // guards the two below
  std::unordered_set<RRefKey, RRefKeyHash> orphans_;
  std::unordered_map<Rank, std::int64_t> ids_at_loss_;  // ids this worker had made by then
  RRefTable table_;
};

}  // namespace weft::rpc
