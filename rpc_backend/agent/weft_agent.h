// WeftAgent: torch's RpcAgent over Weft's transport.
//
// It owns the parts that do the work (AgentParts): Group (who the others are), RequestClient (calls
// made here), RequestServer (requests served here), RRefService, and MessageRouter, which gives
// each message that comes to one of them.
//
// Threads: public methods may be called from any thread, but without the GIL where they may wait
// (create, join, barrier, shutdown). User code never runs on the transport's loop thread, nor with
// a lock held: requests run on workers, callbacks of futures on completers, and values are released
// on droppers (AgentContext).
// Ownership: it is held by shared_ptr (torch's rule); shutdown() ends its endpoint and threads. A
// task that still runs keeps the parts alive.
// Failure: a call's failure is its future's error (RequestClient). In a child that was forked after
// create() every operation throws at once, what RRefs send when they go is dropped, shutdown() does
// nothing, and the agent is never destroyed: its threads and connections are the parent's.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/agent/agent_config.h"
#include "rpc_backend/agent/agent_rrefs.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/metrics.h"
#include "transport/base/api.h"
#include "transport/base/deadline.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

struct AgentParts;
struct WaitingCall;  // rpc_backend/call/call_table.h

class WEFT_API WeftAgent : public RpcAgent, public std::enable_shared_from_this<WeftAgent> {
 public:
  using Config = AgentConfig;

  // Listens, meets the other workers through the Store (static: all of them; dynamic: those that
  // are there) and checks that they fit. Serves from start() on; requests that come earlier wait.
  // `callback` serves: torch's own in a Python process, Weft's without Python. Throws c10::Error or
  // c10::ValueError; then nothing is left running.
  static std::shared_ptr<WeftAgent> create(Config config,
                                           std::unique_ptr<RequestCallback> callback);
  ~WeftAgent() override;
  // Null: the process's current agent is none or another.
  static std::shared_ptr<WeftAgent> current();

  // Throws in a forked child. `what`: the operation, for the text.
  void checkProcess(const char* what) const;
  // RpcAgent's, which joins a thread that a forked child does not have.
  void shutdown();

  // RpcAgent.
  FuturePtr send(const WorkerInfo& to, MessagePtr message, float timeout_seconds,
                 const DeviceMap& device_map) override;
  using RpcAgent::getWorkerInfo;
  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  // torch's name: leaves. With `shutdown`, the last barrier; `_wait_all_workers` has passed one
  // before.
  void join(bool shutdown, float timeout_seconds) override;
  void sync() override {}
  void startImpl() override;
  void shutdownImpl() override;
  std::unordered_map<std::string, std::string> getMetrics() override;
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;
  const std::vector<c10::Device>& getDevices() const override;

  // As send(), for a quick call (rpc_backend/serve/quick_call.h) without a timeout: the loss of the
  // worker ends it. The future's callbacks must neither wait nor call out.
  FuturePtr sendQuick(const WorkerInfo& to, MessagePtr message);
  // Waits until `done()`, which must be cheap and take no lock that this thread holds. Meanwhile
  // this thread reads what comes. Nothing: it cannot, so wait in another way. Another thread that
  // makes `done()` true calls wakeDriver() afterwards.
  std::optional<transport::Waited> drive(transport::Deadline deadline,
                                         const std::function<bool()>& done);
  void wakeDriver();

  // Cancels the call whose answer completes that future: nobody waits for it any more.
  void cancel(const JitFuture& answer);
  // Returns when `answer`, which nobody else waits for, is complete: with the answer to a call that
  // this thread has sent, or with an error. A thread that has taken its InlineWaiter completes it
  // itself. Ctrl-C cancels the call, and what its handler raised is thrown. Without the GIL, and
  // with no lock held.
  static void awaitAnswer(JitFuture& answer);

  // Static groups: waits until every worker has come here and no call is in flight. After the
  // `last` barrier, rank 0 stays until the others have seen it, because it may serve the Store.
  // Returns the ranks that some worker has lost, or that were started again, so that all workers
  // go on alike.
  std::vector<std::int32_t> barrier(float timeout_seconds, bool last = false);

  // After Ctrl-C: shutdown() will not wait for user code that still runs.
  void hurry();

  bool isStaticGroup() const noexcept;
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }
  const WeftRpcBackendOptions& options() const noexcept;
  // False when the request policy of some worker refuses Python calls of torch's own.
  bool everyoneServesPython() const;
  // Why that worker is lost; nothing while it is not.
  std::optional<std::string> lossOf(worker_id_t id) const;
  // A worker's name, also after it has left; "?" when there never was one.
  std::string nameOf(worker_id_t id) const;

  AgentRRefs rrefs() const noexcept { return AgentRRefs(*parts_); }
  // The oldest first, at most `most`.
  std::vector<WaitingCall> waitingCalls(std::size_t most) const;
  const AgentMetrics& counters() const noexcept;

 protected:
  // Holds a new agent, but never destroys it in a forked child.
  template <typename Agent>
  static std::shared_ptr<Agent> own(Agent* agent) {
    return {agent, [](Agent* last) { destroy(last); }};
  }
  WeftAgent(Config config, std::unique_ptr<RequestCallback> callback);
  // The second half of create(): checks the options, listens and meets the others. Shuts down when
  // it throws.
  void joinGroup();

 private:
  static void destroy(WeftAgent* agent);
  FuturePtr send(const WorkerInfo& to, const MessagePtr& message, float timeout_seconds,
                 const DeviceMap& device_map, bool quick);
  void addGilWaitTime(std::chrono::microseconds wait) override;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::function<void()> before_serving_;
  const std::shared_ptr<AgentParts> parts_;
};

}  // namespace weft::rpc
