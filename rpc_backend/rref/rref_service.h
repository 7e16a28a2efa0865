// RRefService: keeps an agent's RRefs right: it serves torch's RRef messages, refuses messages
// about lost values, and cleans up after a lost worker.
//
// Threads: any, unless a member says otherwise. No lock is held while user code runs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/orphaned_rrefs.h"
#include "rpc_backend/rref/rref_lifecycle.h"

namespace weft::rpc {

class RRefService {
 public:
  RRefService(AgentContext& context, MessageSender& sender, Group& group, RRefHooks hooks)
      : context_(context),
        sender_(sender),
        group_(group),
        orphans_(context.rank),
        lifecycle_(context.rank, std::move(hooks), context.droppers) {}

  RRefLifecycle& lifecycle() noexcept { return lifecycle_; }

  // Whether a control message counts as acknowledged without being sent, because the receiver's
  // table, which it would keep right, is closed. torch would send it again for 13 s and then print
  // an error.
  bool isMoot(worker_id_t to, MessageType type) const;

  struct Outgoing {
    RRefLifecycle::Carried carried;      // for undo(), when the message is not sent
    std::optional<std::string> refusal;  // why it must not be sent: it is about a lost value
  };
  // A message is about to be sent; on the thread that made it.
  Outgoing beforeSend(const Message& message, worker_id_t to);
  // The message is written now, perhaps some time after beforeSend().
  void onTransmit(const Message& message, worker_id_t to) { orphans_.onTransmit(message, to); }

  // Loop thread: the peer is lost.
  void onPeerLost(worker_id_t peer);
  // After a grace period: releases what a lost peer held, and ends the waits for values that it was
  // to create. Returns at once.
  void cleanUpAfter(worker_id_t peer);

  // Loop thread: a lost peer is back. Tells it which values it must not wait for.
  void onPeerReturned(worker_id_t peer);
  // Loop thread: the message that the peer's onPeerReturned() sent.
  void onCreationsLost(worker_id_t peer, const std::string& text);
  // A request for `value` is being served: ends its wait if the value's creator is lost, or was.
  void onFetch(const RRefKey& value);
  // A thread of this process is about to wait for a value of its own: the same.
  void onOwnWait(const RRefKey& value);

  // As AgentRRefs::isOrphan().
  bool isOrphan(const RRefKey& value, worker_id_t owner) const {
    return orphans_.contains(value, static_cast<Rank>(owner));
  }
  // As AgentRRefs::failUnfinished().
  void failUnfinished();
  // As AgentRRefs::warnAboutLeaks().
  void warnAboutLeaks(bool ignored) const;

 private:
  void cleanUp(worker_id_t peer);
  std::string orphanText(const RRefKey& value, worker_id_t owner) const;
  // Ends the waits for a value if its creator is lost, or was.
  void failIfLost(const RRefKey& value);
  // As first_ids_ says.
  std::optional<std::int64_t> firstIdOf(worker_id_t peer);
  // Ends the waits for values that `creator` was to create, with ids below `first`.
  void failAwaitedOf(worker_id_t creator, std::int64_t first);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  OrphanedRRefs orphans_;
  RRefLifecycle lifecycle_;
  std::mutex mutex_;  // guards what follows
  // Peers for which a clean-up is scheduled, with the contexts of autograd that they had begun.
  std::map<worker_id_t, std::vector<std::int64_t>> cleaning_up_;
  // For each peer that came back: the values that it creates here have local ids from this one on.
  std::map<worker_id_t, std::int64_t> first_ids_;
  std::set<worker_id_t> failing_;  // peers for which a completer is about to read that number
};

}  // namespace weft::rpc
