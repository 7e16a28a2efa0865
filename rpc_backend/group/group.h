// Group: knows the other workers: their names, addresses and device maps, and which of them are
// lost, and why.
//
// Threads: any. join(), announce(), leave() and barrier() wait for the Store or for peers, so they
// never run on the loop thread.
// Failure: throws c10::Error if the Store fails or a peer does not fit.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/group/directory.h"
#include "rpc_backend/group/live_list.h"
#include "rpc_backend/group/member_table.h"
#include "rpc_backend/group/peer_losses.h"
#include "rpc_backend/join/membership.h"
#include "rpc_backend/threads/agent_context.h"

namespace weft::rpc {

class Group {
 public:
  using Clock = PeerLosses::Clock;
  // Makes a call between Weft's own agents, which user code never sees: to introduce a worker, to
  // say goodbye, and to find out whether a peer lives. The answer is empty, or the error that the
  // peer or the connection reports.
  using ControlCall = std::function<FuturePtr(worker_id_t to, ControlType type,
                                              const std::string& text, milliseconds)>;

  // `world_size`: none for a dynamic group. `device_count`: accelerators of this process.
  Group(AgentContext& context, MessageSender& sender, ControlCall call,
        c10::intrusive_ptr<c10d::Store> store, std::optional<int> world_size, int device_count);

  // Call these two once, in this order: secret() gets the key, join() (with an open endpoint) meets
  // the others. A static group waits for all its workers, a dynamic one takes those that are there.
  transport::GroupSecret secret();
  void join(const transport::GroupSecret& secret);
  // Announces this worker to the others if they cannot know of it yet: in a dynamic group, and
  // after a restart.
  void announce();
  // Dynamic groups: leaves, and waits until the others know.
  void leave();
  // After join() or announce() has failed. Dynamic groups: takes this worker off the list.
  void withdraw() noexcept;
  // As WeftAgent::barrier().
  std::vector<std::int32_t> barrier(milliseconds timeout, bool last);
  // Sends a message to the peer, so that its loss is noticed. Returns at once.
  void ping(worker_id_t peer);

  bool isStatic() const noexcept { return world_size_.has_value(); }
  // Whether an earlier process had this worker's rank.
  bool wasRestarted() const noexcept { return membership_.wasRestarted(); }
  milliseconds timeout() const noexcept { return membership_.timeout(); }
  Directory& directory() noexcept { return directory_; }
  const Directory& directory() const noexcept { return directory_; }
  // "worker 'a' (rank 0)"; also for a worker that has left.
  std::string describe(worker_id_t id) const;
  // False when the request policy of some worker refuses Python calls of torch's own.
  bool everyoneServesPython() const;

  // The accelerators in use here. They do not change after join(). The loop thread asks only later:
  // for the answer to a call made here, or once the agent serves.
  const std::vector<c10::Device>& devices() const noexcept { return devices_; }
  // The maps from devices here to those of `peer`, for a request and for an answer.
  DeviceMap requestMap(const std::string& peer) const;
  DeviceMap answerMap(const std::string& peer) const;

  // Loop thread. Serves a control message. Returns the problem to answer it with; empty: none.
  std::string serveControl(worker_id_t from, ControlType type, const std::string& text);

  const PeerLosses& losses() const noexcept { return losses_; }
  // Why that worker is lost; nothing: it is not.
  std::optional<std::string> lossOf(worker_id_t id) const { return losses_.lossOf(id); }
  void noteLoss(worker_id_t peer, const transport::Error& why) { losses_.add(peer, why); }
  // Loop thread: the lost worker is back in the same life. Returns how long it was lost.
  Clock::duration noteReturn(worker_id_t peer);
  // Loop thread: the lost worker lives, and has another process in this worker's place.
  void noteDisplaced(worker_id_t peer, const transport::Error& why);
  // Loop thread, when the peer is lost. Dynamic groups: forgets a worker that has left, or has
  // never said that it joins, so that a peer which comes under ever new ranks uses no memory for
  // good.
  void forgetUnlessMember(worker_id_t peer);
  // As LiveList::update(); static groups have no such list.
  void updateList(worker_id_t peer);

 private:
  MemberRecord ownRecord(const transport::GroupSecret& secret) const;
  void admit(const MemberRecord& member);
  // Tells the member of this worker. A peer that refuses it answers with the error.
  FuturePtr introduceSelf(worker_id_t member);
  // LiveList::Introduce.
  void introduce(const MemberRecord& newcomer);
  void dismiss(worker_id_t member);

  AgentContext& context_;
  MessageSender& sender_;
  const ControlCall call_;
  const std::optional<int> world_size_;
  const int device_count_;
  Membership membership_;
  MemberRecord self_;  // from join() on
  Directory directory_;
  MemberTable members_;
  PeerLosses losses_;
  LiveList live_list_;  // of a dynamic group
  std::vector<c10::Device> devices_;
  std::atomic<int> barriers_{0};  // how many the group has passed
};

}  // namespace weft::rpc
