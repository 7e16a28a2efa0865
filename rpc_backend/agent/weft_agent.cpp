#include "rpc_backend/agent/weft_agent.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/agent/agent_parts.h"
#include "rpc_backend/call/driven_wait.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/thread_state_of_torch.h"
#include "rpc_backend/join/store_access.h"
#include "rpc_backend/options/env.h"
#include "rpc_backend/torch_private/rref_agent.h"
#include "transport/base/environment.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

namespace {

// Where torch's -1 means the group's timeout.
milliseconds timeoutOf(float seconds, const WeftAgent& agent) {
  return seconds == torch::distributed::rpc::kUnsetRpcTimeout ? agent.getRpcTimeout()
                                                              : toTimeout(seconds);
}

}  // namespace

std::shared_ptr<WeftAgent> WeftAgent::create(Config config,
                                             std::unique_ptr<RequestCallback> callback) {
  const std::string problem = environment::problem();
  TORCH_CHECK_VALUE(problem.empty(), problem);
  auto agent = own(new WeftAgent(std::move(config), std::move(callback)));
  agent->joinGroup();
  return agent;
}

WeftAgent::WeftAgent(Config config, std::unique_ptr<RequestCallback> callback)
    : RpcAgent(WorkerInfo(config.name, config.rank), nullptr,
               fromSeconds(std::min(config.options.rpcTimeoutSeconds, kLongestTimeout))),
      store_(config.store),
      before_serving_(std::move(config.before_serving)),
      parts_(std::make_shared<AgentParts>(config, std::move(callback))) {
  parts_->context.parts = parts_;
}

std::shared_ptr<WeftAgent> WeftAgent::current() {
  if (!isCurrentRpcAgentSet()) return nullptr;
  return std::dynamic_pointer_cast<WeftAgent>(getCurrentRpcAgent());
}

void WeftAgent::checkProcess(const char* what) const { parts_->context.process.check(what); }

void WeftAgent::destroy(WeftAgent* agent) {
  if (agent->parts_->context.process.holds()) delete agent;
}

WeftAgent::~WeftAgent() {
  if (rpcAgentRunning_.load()) shutdown();
  shutdownImpl();
}

void WeftAgent::joinGroup() {
  options().check();
  env::warnAboutUnknownOnce();
  torch_rrefs::failFirst();
  using Running = const std::atomic<bool>;
  parts_->context.running = std::shared_ptr<Running>(shared_from_this(), &rpcAgentRunning_);
  OwnProcess::join();
  try {
    parts_->join();
  } catch (const c10::DistNetworkError& error) {
    shutdownImpl();
    throwServerGone(store_, error);
  } catch (const c10::Error&) {
    parts_->group.withdraw();
    shutdownImpl();
    throw;
  } catch (...) {  // Ctrl-C: a member that is stopped does not hold up its end
    hurry();
    parts_->group.withdraw();
    shutdownImpl();
    throw;
  }
}

void WeftAgent::startImpl() {
  checkProcess("starting RPC");
  if (before_serving_) before_serving_();
  torch_rrefs::beginWithCurrentAgent();
  torch_rrefs::endInForkedChildren();
  auto joining = AgentContext::Phase::kJoining;
  parts_->context.phase.compare_exchange_strong(joining, AgentContext::Phase::kServing);
  parts_->context.workers.release();
}

void WeftAgent::shutdown() {
  if (parts_->context.process.holds()) RpcAgent::shutdown();
}

void WeftAgent::shutdownImpl() { parts_->close(); }

FuturePtr WeftAgent::send(const WorkerInfo& to, MessagePtr message, const float timeout_seconds,
                          const DeviceMap& device_map) {
  return send(to, message, timeout_seconds, device_map, /*quick=*/false);
}

FuturePtr WeftAgent::sendQuick(const WorkerInfo& to, MessagePtr message) {
  constexpr float kNoTimeout = 0;
  return send(to, message, kNoTimeout, {}, /*quick=*/true);
}

FuturePtr WeftAgent::send(const WorkerInfo& to, const MessagePtr& message, float timeout_seconds,
                          const DeviceMap& device_map, bool quick) try {
  TORCH_CHECK(message->isRequest(), "WeftAgent::send(..) is only for sending requests.");
  if (!parts_->context.process.holds() && RRefLifecycle::isRRefMessage(message->type())) {
    return parts_->client.acknowledged();
  }
  checkProcess("an RPC call");
  if (parts_->rrefs.isMoot(to.id_, message->type())) return parts_->client.acknowledged();
  if (!rpcAgentRunning_.load()) {
    throw std::runtime_error(c10::str("Node ", parts_->context.rank,
                                      " tried to send() a message of type ", message->type(),
                                      " but RPC is no longer running on this node."));
  }
  const auto timeout = timeoutOf(timeout_seconds, *this);
  return parts_->client.send(parts_->group.directory().byId(to.id_).id_, message, timeout,
                             device_map.empty() ? getDeviceMap(to) : device_map, quick);
} catch (...) {
  if (to.id_ == parts_->context.rank && parts_->context.process.holds()) dropOwnRRef(*message);
  throw;
}

std::optional<transport::Waited> WeftAgent::drive(transport::Deadline deadline,
                                                  const std::function<bool()>& done) {
  checkProcess("waiting for other workers");
  if (!threadIsPlain()) return std::nullopt;
  thread_local transport::AdaptiveSpin spin;
  const auto endpoint = parts_->sender.endpoint();
  return driveUntil(*endpoint, deadline, done, spin);
}

void WeftAgent::wakeDriver() { parts_->sender.endpoint()->wakeDriver(transport::Driver::kCaller); }

void WeftAgent::join(bool shutdown, float timeout_seconds) {
  checkProcess("leaving the RPC group");
  ActiveCount& calls = parts_->context.metrics.client_calls;
  const auto timeout = timeoutOf(timeout_seconds, *this);
  if (isStaticGroup()) {
    if (shutdown) {
      barrier(timeout_seconds, /*last=*/true);
    } else {
      calls.waitForZero(timeout.count() > 0 ? timeout : std::chrono::hours(1));
    }
    return;
  }
  const auto limit = timeout.count() > 0 ? timeout : parts_->group.timeout();
  TORCH_CHECK(calls.waitForZero(limit), parts_->context.me(),
              " cannot leave: calls it made are still in flight after ", limit.count(), " ms");
  try {
    parts_->group.leave();
  } catch (const c10::DistNetworkError& error) {
    throwServerGone(store_, error);
  }
}

std::vector<std::int32_t> WeftAgent::barrier(float timeout_seconds, bool last) {
  checkProcess("waiting for all workers");
  try {
    return parts_->group.barrier(timeoutOf(timeout_seconds, *this), last);
  } catch (const c10::DistNetworkError& error) {
    throwServerGone(store_, error);
  }
}

void WeftAgent::cancel(const JitFuture& answer) {
  checkProcess("cancelling a call");
  parts_->client.canceller().cancel(answer);
}

void WeftAgent::awaitAnswer(JitFuture& answer) {
  try {
    InlineWaiter::wait();
    if (!answer.completed()) transport::raiseIfInterrupted();  // the waiter let no handler run
    awaitInterruptibly(answer);
  } catch (...) {
    if (const auto agent = current()) agent->cancel(answer);
    throw;
  }
}

void WeftAgent::hurry() { parts_->context.hurried = true; }

const WorkerInfo& WeftAgent::getWorkerInfo(const std::string& name) const {
  checkProcess("finding a worker");
  return parts_->group.directory().byName(name);
}

const WorkerInfo& WeftAgent::getWorkerInfo(worker_id_t id) const {
  checkProcess("finding a worker");
  // torch asks for the owner of an RRef, which may have left in the meantime.
  const WorkerInfo* known = parts_->group.directory().everKnown(id);
  return known != nullptr ? *known : parts_->group.directory().byId(id);
}

std::vector<WorkerInfo> WeftAgent::getWorkerInfos() const {
  checkProcess("finding the workers");
  return parts_->group.directory().all();
}

DeviceMap WeftAgent::getDeviceMap(const WorkerInfo& to) const {
  return parts_->group.requestMap(to.name_);
}

const std::vector<c10::Device>& WeftAgent::getDevices() const { return parts_->group.devices(); }
const WeftRpcBackendOptions& WeftAgent::options() const noexcept { return parts_->context.options; }

bool WeftAgent::isStaticGroup() const noexcept { return parts_->group.isStatic(); }
bool WeftAgent::everyoneServesPython() const {
  checkProcess("asking for the workers' policies");
  return parts_->group.everyoneServesPython();
}

std::optional<std::string> WeftAgent::lossOf(worker_id_t id) const {
  checkProcess("asking whether a worker is lost");
  return parts_->group.lossOf(id);
}

std::string WeftAgent::nameOf(worker_id_t id) const {
  checkProcess("finding a worker");
  return parts_->group.directory().nameOf(id);
}

void WeftAgent::addGilWaitTime(std::chrono::microseconds wait) {
  parts_->context.metrics.gil_wait_us.fetch_add(static_cast<std::uint64_t>(wait.count()),
                                                std::memory_order_relaxed);
  parts_->context.metrics.gil_waits.fetch_add(1, std::memory_order_relaxed);
}

std::vector<WaitingCall> WeftAgent::waitingCalls(std::size_t most) const {
  checkProcess("the calls of RPC");
  return parts_->client.oldestCalls(most);
}

const AgentMetrics& WeftAgent::counters() const noexcept { return parts_->context.metrics; }

std::unordered_map<std::string, std::string> WeftAgent::getMetrics() {
  checkProcess("metrics of RPC");
  std::unordered_map<std::string, std::string> out;
  parts_->addMetrics(out, isGILProfilingEnabled());
  return out;
}

}  // namespace weft::rpc
