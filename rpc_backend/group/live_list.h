// LiveList: keeps the list that a dynamic group has in the Store in step with who lives: a dead
// member leaves it, so that its successor can join, and one that is back is put on it again.
//
// Threads: update() any. The work runs on a completer, because it waits for the Store; a failure
// there is logged.
#pragma once

#include <functional>
#include <utility>

#include "rpc_backend/group/member_table.h"
#include "rpc_backend/group/peer_losses.h"
#include "rpc_backend/join/membership.h"
#include "rpc_backend/threads/agent_context.h"

namespace weft::rpc {

class LiveList {
 public:
  // Gets to know a member, and tells it of this worker. Throws if the member does not fit.
  using Introduce = std::function<void(const MemberRecord& newcomer)>;

  // All outlive the last completer. `self`: the record with which this worker has joined, when
  // update() is called.
  LiveList(AgentContext& context, Membership& membership, const MemberRecord& self,
           const MemberTable& members, const PeerLosses& losses, Introduce introduce)
      : context_(context),
        membership_(membership),
        self_(self),
        members_(members),
        losses_(losses),
        introduce_(std::move(introduce)) {}

  // After the peer was lost, or came back. Returns at once.
  void update(worker_id_t peer);

 private:
  bool isDead(worker_id_t peer) const;
  void takeOffOrRestore(worker_id_t peer, bool dead);
  // Gets to know those who joined while this worker was lost to all, and tells them of itself.
  void meetNewcomers();

  AgentContext& context_;
  Membership& membership_;
  const MemberRecord& self_;
  const MemberTable& members_;
  const PeerLosses& losses_;
  const Introduce introduce_;
};

}  // namespace weft::rpc
