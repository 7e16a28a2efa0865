// WeftAgent: torch's RpcAgent over Weft's transport.
//
// Threads. Public methods may be called from any thread, but not with the GIL held where they
// may wait (join, shutdown, the constructor). The transport's loop thread reads messages
// and hands them on; requests run on `workers_`, futures complete on `completers_`, and values and
// tensors that are of no use any more are let go of on `droppers_`, because that may run user code
// too. So user code never runs on the loop. No lock is held while any of it runs.
//
// Ownership. The agent owns its endpoint and threads; shutdown() ends them all. It is held by
// shared_ptr (torch's rule): tasks keep it alive while they run.
//
// Failure. A call's failure is its future's error: a timeout in TensorPipe's words, a lost
// peer with its name and reason, a refusal with the policy's reason.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/agent/call_table.h"
#include "rpc_backend/agent/fault_plan.h"
#include "rpc_backend/agent/metrics.h"
#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/core/options.h"
#include "rpc_backend/core/worker_pool.h"
#include "rpc_backend/group/directory.h"
#include "rpc_backend/group/membership.h"
#include "rpc_backend/rref/rref_lifecycle.h"
#include "transport/base/api.h"
#include "transport/endpoint.h"

namespace weft::rpc {

class WEFT_API WeftAgent : public torch::distributed::rpc::RpcAgent,
                           public std::enable_shared_from_this<WeftAgent>,
                           private transport::EndpointHandler {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using worker_id_t = torch::distributed::rpc::worker_id_t;

  struct Config {
    c10::intrusive_ptr<c10d::Store> store;
    std::string name;
    worker_id_t rank = -1;
    std::optional<int> world_size;  // none: a dynamic group
    int device_count = 0;           // accelerators of this process
    WeftRpcBackendOptions options;
    std::optional<FaultOptions> faults;
    RRefHooks rref_hooks;      // in a process with Python
    ThreadHooks thread_hooks;  // for the threads that run requests and complete futures
    std::function<void()>
        before_serving;  // in start(), when this is the current agent; may be empty
  };

  // Listens, meets the other workers through the Store (static: all of them; dynamic: those
  // there already) and checks that they fit. Serves from start() on; requests that
  // come earlier wait. `callback` is what serves: torch's own in a Python process, Weft's
  // without Python. Throws c10::Error / c10::ValueError; then nothing is left running.
  static std::shared_ptr<WeftAgent> create(
      Config config, std::unique_ptr<torch::distributed::rpc::RequestCallback> callback);
  ~WeftAgent() override;

  // RpcAgent.
  c10::intrusive_ptr<JitFuture> send(const WorkerInfo& to, c10::intrusive_ptr<Message> message,
                                     float timeout_seconds,
                                     const torch::distributed::rpc::DeviceMap& device_map) override;
  using RpcAgent::getWorkerInfo;
  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  void join(bool shutdown, float timeout_seconds) override;
  void sync() override {}
  void startImpl() override;
  void shutdownImpl() override;
  std::unordered_map<std::string, std::string> getMetrics() override;
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;
  const std::vector<c10::Device>& getDevices() const override { return devices_; }

  // Waits until every worker has come here and no call is in flight (static groups). After
  // the `last` one, rank 0 stays until the others have seen it: it may serve the Store.
  // Returns the ranks that were lost and so not waited for.
  std::vector<std::int32_t> barrier(float timeout_seconds, bool last = false);

  bool isStaticGroup() const noexcept { return config_.world_size.has_value(); }
  c10::intrusive_ptr<c10d::Store> store() const { return config_.store; }
  const WeftRpcBackendOptions& options() const noexcept { return config_.options; }
  // False when the request policy of some worker refuses Python calls of torch's own.
  bool everyoneServesPython() const;
  // Why that worker is lost; nothing while it is not.
  std::optional<std::string> lossOf(worker_id_t id) const;

  // The values owned here that others refer to, and the references held here.
  std::vector<RRefRow> rrefReport();
  // One warning for each value owned here that others still refer to; at most 10, then a count.
  // For the end, when nobody should. `ignored`: the program does not care, so only at level info.
  void warnAboutLeakedRRefs(bool ignored);
  // A worker's name, also after it has left; "?" when there never was one.
  std::string nameOf(worker_id_t id) const;

 private:
  WeftAgent(Config config, std::unique_ptr<torch::distributed::rpc::RequestCallback> callback);
  RRefHooks rrefHooks();
  void addGilWaitTime(std::chrono::microseconds wait) override;

  // agent_lifecycle.cpp
  void registerWithTorch();
  void openEndpoint(const GroupSecret& secret);
  MemberRecord ownRecord(const GroupSecret& secret) const;
  void admit(const MemberRecord& member);
  void announce(const std::vector<MemberRecord>& members);
  void beginAnew();
  void leaveDynamicGroup();
  // Dynamic groups: takes a lost member off the list, so that its successor can join.
  void forgetMember(worker_id_t id);
  std::string me() const;

  // agent_calls.cpp
  c10::intrusive_ptr<JitFuture> startCall(worker_id_t to, std::uint16_t type,
                                          std::chrono::milliseconds timeout, std::uint64_t& id);
  // `carried`: the RRefs in the message, given back to the ledger when it is not sent.
  void transmit(worker_id_t to, std::uint64_t id, const c10::intrusive_ptr<Message>& message,
                const DeviceMap& device_map, const RRefLifecycle::Carried& carried);
  void failCall(PendingCall call, const std::string& text);
  void finishCall(const std::function<void()>& complete);
  // On the thread that waits for the call, else on a completer. False: neither is there any more.
  bool complete(const PendingCall& call, Completion completion);
  void armTimer(Clock::time_point deadline);
  void expireCalls();
  void onResponse(worker_id_t from, const std::shared_ptr<IncomingMessage>& in);
  void onControlAck(worker_id_t from, const IncomingMessage& in);
  c10::intrusive_ptr<JitFuture> sendControl(worker_id_t to, std::uint16_t type,
                                            const std::string& text,
                                            std::chrono::milliseconds timeout);

  // On the loop thread: lets go of something of which the last owner may be there.
  template <typename Owned>
  void dropElsewhere(Owned owned) {
    droppers_.run([owned = std::move(owned)] {});
  }

  // agent_serve.cpp
  void sendToSelf(std::uint64_t id, const c10::intrusive_ptr<Message>& message);
  void onRequest(worker_id_t from, const std::shared_ptr<IncomingMessage>& in);
  // `take` makes the request's message under the call's streams; what it throws is answered.
  void serve(worker_id_t from, std::uint64_t id, RRefLifecycle::Seen seen,
             const std::function<c10::intrusive_ptr<Message>()>& take);
  void respond(worker_id_t to, std::uint64_t id, RRefLifecycle::Seen seen, JitFuture& result);
  void sendResponse(worker_id_t to, std::uint64_t id, const c10::intrusive_ptr<Message>& message);
  void completeSelf(std::uint64_t id, const c10::intrusive_ptr<Message>& message);
  void refuseRequest(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                     const std::string& why);
  void onControl(worker_id_t from, const IncomingMessage& in);
  bool runRequest(std::function<void()> task);
  void runCounted(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                  RRefLifecycle::Seen seen);
  void respondFailure(worker_id_t to, std::uint64_t id, const std::string& text);

  // agent_rrefs.cpp
  bool serveRRefControl(worker_id_t from, const IncomingMessage& in, RRefLifecycle::Seen seen);
  bool nothingLeftToSay(worker_id_t to, std::uint16_t type) const;
  c10::intrusive_ptr<JitFuture> asIfAcknowledged() const;
  void cleanUpAfter(worker_id_t peer);
  std::string orphanText(const RRefKey& value, worker_id_t owner) const;

  // EndpointHandler, on the loop thread (agent_wire.cpp).
  transport::Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                                  std::span<const std::uint64_t> sizes,
                                  std::vector<transport::OwnedBuffer>& buffers) override;
  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<transport::OwnedBuffer> buffers) override;
  void onPeerLost(const transport::PeerLoss& loss) override;
  void onPeerJoined(const transport::PeerInfo& peer) override;
  void onSendFailed(std::int32_t to, std::span<const std::byte> header,
                    const transport::Error& reason) override;
  bool wants(std::int32_t from, std::span<const std::byte> header,
             std::span<const std::uint64_t> sizes);
  void noteLoss(worker_id_t peer, const transport::Error& reason);
  // As encode(), of a message whose buffers are not let go of on the loop thread.
  transport::Message encoded(WireKind kind, std::uint64_t call_id,
                             const c10::intrusive_ptr<Message>& message, const DeviceMap& map,
                             const std::string& peer);

  const Config config_;
  Membership membership_;
  Directory directory_;
  PendingCalls pending_;
  AgentMetrics metrics_;
  std::unique_ptr<FaultPlan> faults_;
  RRefLifecycle rrefs_;
  WorkerPool workers_;
  WorkerPool completers_;
  WorkerPool droppers_;
  const std::shared_ptr<transport::WarmPool> receive_pool_;  // null: the system gives none
  std::unique_ptr<transport::Endpoint> endpoint_;

  mutable std::mutex maps_mutex_;  // guards the two below
  DeviceMaps reverse_maps_;
  std::vector<MemberRecord> members_;  // dynamic groups: all but self
  std::vector<c10::Device> devices_;

  std::mutex early_mutex_;  // guards the two below
  bool serving_ = false;
  std::vector<std::function<void()>> early_requests_;

  std::mutex timer_mutex_;
  Clock::time_point timer_armed_ = Clock::time_point::max();

  mutable std::mutex loss_mutex_;
  std::unordered_map<worker_id_t, std::string> losses_;
  std::unordered_map<worker_id_t, std::string> former_losses_;  // of workers that are back, or not
  std::set<worker_id_t> cleaning_up_;                           // a cleanUpAfter() is on its way

  std::mutex inflight_mutex_;
  std::unordered_map<worker_id_t, std::uint64_t> inflight_bytes_;

  // Loop thread only: the message of each peer whose buffers are being read.
  std::unordered_map<std::int32_t, std::shared_ptr<IncomingMessage>> reading_;
  std::atomic<int> barriers_{0};
  std::atomic<bool> closing_{false};
};

}  // namespace weft::rpc
