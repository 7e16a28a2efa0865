#include "rpc_backend/agent/weft_agent.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/agent/message_router.h"
#include "rpc_backend/call/call_kind.h"
#include "rpc_backend/call/driven_wait.h"
#include "rpc_backend/core/env.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/group/store_access.h"
#include "transport/auth/encryption_settings.h"
#include "transport/base/environment.h"
#include "transport/io/interface.h"

namespace weft::rpc {

namespace {

// 0 is no limit. A value that is neither a time nor that would wait for ever, silently.
milliseconds toTimeout(float seconds) {
  // A clock can count so far; nobody notices the difference from "infinity".
  constexpr double kLongest = 1e9;
  TORCH_CHECK_VALUE(seconds >= 0, "timeout must be a number of seconds that is not negative, got ",
                    seconds);
  // Rounded up: the shortest time is not "no limit".
  return seconds == 0 ? milliseconds(0)
                      : std::max(fromSeconds(std::min<double>(seconds, kLongest)), milliseconds(1));
}

// The same, where torch's -1 means the group's timeout.
milliseconds toTimeout(float seconds, const WeftAgent& agent) {
  return seconds == torch::distributed::rpc::kUnsetRpcTimeout ? agent.getRpcTimeout()
                                                              : toTimeout(seconds);
}

transport::EndpointOptions endpointOptions(const WeftRpcBackendOptions& options,
                                           const AgentContext& context) {
  transport::EndpointOptions out;
  out.name = context.name;
  out.rank = context.rank;
  out.unix_socket = environment::value(environment::kUnixSocket) != "0";
  out.accept_other_users = environment::value(environment::kOtherUsers) == "1";
  out.accept_successors = true;
  out.reunite = true;
  out.heartbeat_interval = fromSeconds(options.heartbeat_interval);
  out.peer_timeout = fromSeconds(options.peer_timeout);
  out.reconnect_timeout = fromSeconds(options.reconnect_timeout);
  out.limits.max_message_bytes = options.max_message_bytes;
  out.limits.skip_too_large = true;
  out.limits.max_buffers = kMaxTensors + 2;  // a payload, the tensors and the byte behind them
  out.arena.enabled = environment::value(environment::kSharedMemory) != "0";
  out.bulk.enabled = environment::value(environment::kTcpConnections) != "1";
  return out;
}

// An idle worker waits for the network itself, so that it runs the request that it reads.
IdleWork drivingOf(const std::shared_ptr<transport::Endpoint>& endpoint) {
  return {[endpoint](const std::function<bool()>& done, transport::AdaptiveSpin& spin) {
            const auto never = transport::Deadline::max();
            return endpoint->drive(transport::Driver::kServer, done, never, spin) ==
                   transport::Driven::kDone;
          },
          [endpoint] { endpoint->wakeDriver(transport::Driver::kServer); }};
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

// Each part may use those above it.
struct WeftAgent::Parts {
  Parts(Config& config, std::unique_ptr<RequestCallback> callback)
      : context(config.name, config.rank, config.options, config.thread_hooks),
        sender(context),
        group(
            context, sender,
            [this](worker_id_t to, ControlType type, const std::string& text,
                   milliseconds timeout) { return client.callControl(to, type, text, timeout); },
            config.store, config.world_size, config.device_count),
        rrefs(context, sender, group, std::move(config.rref_hooks)),
        // A call to oneself goes to the server, which answers through the client.
        client(context, sender, group, rrefs,
               {[this](std::uint64_t id, FuturePtr request, Clock::time_point deadline) {
                  server.onOwnRequest(id, std::move(request), deadline);
                },
                [this](std::uint64_t id) { server.onCancelOwn(id); }, std::move(config.send_delay),
                std::move(config.send_fault)}),
        server(context, sender, group, rrefs, client, std::move(callback)),
        router(context, sender, group, rrefs, client, server, receive_pool.get()) {}

  AgentContext context;
  const std::shared_ptr<transport::WarmPool> receive_pool = transport::WarmPool::create();
  MessageSender sender;
  Group group;
  RRefService rrefs;
  RequestClient client;
  RequestServer server;
  MessageRouter router;
};

WeftAgent::WeftAgent(Config config, std::unique_ptr<RequestCallback> callback)
    : RpcAgent(WorkerInfo(config.name, config.rank), nullptr,
               fromSeconds(config.options.rpcTimeoutSeconds)),
      store_(config.store),
      before_serving_(std::move(config.before_serving)),
      parts_(std::make_shared<Parts>(config, std::move(callback))) {
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
  Group& group = parts_->group;
  using Running = const std::atomic<bool>;
  parts_->context.running = std::shared_ptr<Running>(shared_from_this(), &rpcAgentRunning_);
  OwnProcess::join();
  try {
    parts_->context.prepareThreads();
    const GroupSecret secret = group.secret();
    openEndpoint(secret);
    group.join(secret);
    if (group.hasReturned()) {
      // What the others still have of this rank's former life, and what is on its way to it, must
      // not be taken for this one's.
      torch_rrefs::startIdsAnew(parts_->context.rank);
      parts_->client.startIdsAt(static_cast<std::uint64_t>(torch_rrefs::randomFirstId()));
    }
    group.announce();
  } catch (const c10::DistNetworkError& error) {
    shutdownImpl();
    throwServerGone(store_, error);
  } catch (...) {
    shutdownImpl();
    throw;
  }
}

void WeftAgent::openEndpoint(const GroupSecret& secret) {
  const AgentContext& context = parts_->context;
  const WeftRpcBackendOptions& options = context.options;
  const auto listen = transport::chooseListenAddress(
      options.master_host, options.interface.empty()
                               ? environment::value(environment::kSocketIfname)
                               : options.interface);
  TORCH_CHECK(listen.ok(), context.me(), ": ", listen.error().text());
  // Without a master's name (file:// rendezvous) the choice is a guess that mostly fits; with one,
  // the note says that the host's names are set up wrong.
  if (!listen.value().note.empty()) {
    logLine(options.master_host.empty() ? LogLevel::kInfo : LogLevel::kWarning,
            listen.value().note);
  }
  adoptTransportLog();
  auto wire = endpointOptions(options, context);
  wire.group_id = secret.group_id;
  wire.key = secret.key;
  auto encryption = transport::encryptionFromEnvironment(secret.auth == "file");
  TORCH_CHECK_VALUE(encryption.ok(), context.me(), ": ", encryption.error().text());
  wire.encryption = encryption.value().encryption;
  wire.certificates = std::move(encryption.value().certificates);
  wire.listen_address = listen.value().address;
  wire.accept_unknown_peers = !isStaticGroup();
  wire.receive_pool = parts_->receive_pool;
  parts_->sender.open(std::move(wire), parts_->router);
  parts_->context.workers.setIdleWork(drivingOf(parts_->sender.endpoint()));
}

void WeftAgent::startImpl() {
  checkProcess("starting RPC");
  if (before_serving_) before_serving_();
  torch_rrefs::endInForkedChildren();
  parts_->context.workers.release();
}

void WeftAgent::shutdown() {
  if (parts_->context.process.holds()) RpcAgent::shutdown();
}

void WeftAgent::shutdownImpl() {
  if (parts_->context.closing.exchange(true)) return;
  // First the connections, so that nothing new arrives; then whoever waits; then the threads.
  parts_->sender.close();
  parts_->client.close();
  parts_->context.stopThreads();
  parts_->sender.devices().close();
}

FuturePtr WeftAgent::send(const WorkerInfo& to, MessagePtr message, const float timeout_seconds,
                          const DeviceMap& device_map) {
  return send(to, message, timeout_seconds, device_map, /*quick=*/false);
}

FuturePtr WeftAgent::sendQuick(const WorkerInfo& to, MessagePtr message) {
  return send(to, message, torch::distributed::rpc::kUnsetRpcTimeout, {}, /*quick=*/true);
}

FuturePtr WeftAgent::send(const WorkerInfo& to, const MessagePtr& message, float timeout_seconds,
                          const DeviceMap& device_map, bool quick) {
  TORCH_CHECK(message->isRequest(), "WeftAgent::send(..) is only for sending requests.");
  if (!parts_->context.process.holds() && RRefLifecycle::isControl(message->type())) {
    return parts_->client.acknowledged();
  }
  checkProcess("an RPC call");
  if (parts_->rrefs.isMoot(to.id_, message->type())) return parts_->client.acknowledged();
  if (!rpcAgentRunning_.load()) {
    throw std::runtime_error(c10::str("Node ", parts_->context.rank,
                                      " tried to send() a message of type ", message->type(),
                                      " but RPC is no longer running on this node."));
  }
  const auto timeout = toTimeout(timeout_seconds, *this);
  return parts_->client.send(parts_->group.directory().byId(to.id_).id_, message, timeout,
                             device_map.empty() ? getDeviceMap(to) : device_map, quick);
}

transport::Waited WeftAgent::drive(transport::Deadline deadline,
                                   const std::function<bool()>& done) {
  checkProcess("waiting for other workers");
  if (!threadIsPlain()) return transport::Waited::kDone;
  thread_local transport::AdaptiveSpin spin;
  const auto endpoint = parts_->sender.endpoint();
  return driveUntil(*endpoint, deadline, done, spin);
}

void WeftAgent::wakeDriver() { parts_->sender.endpoint()->wakeDriver(transport::Driver::kCaller); }

void WeftAgent::join(bool shutdown, float timeout_seconds) {
  checkProcess("leaving the RPC group");
  ActiveCount& calls = parts_->context.metrics.client_calls;
  const auto timeout = toTimeout(timeout_seconds, *this);
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
    return parts_->group.barrier(toTimeout(timeout_seconds, *this), last);
  } catch (const c10::DistNetworkError& error) {
    throwServerGone(store_, error);
  }
}

void WeftAgent::cancel(const JitFuture& answer) { parts_->client.canceller().cancel(answer); }
void WeftAgent::cancel(const InlineWaiter::Handle& waiter) {
  parts_->client.canceller().cancel(waiter);
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

std::vector<RRefRow> WeftAgent::rrefReport() const {
  checkProcess("weft.rref_report()");
  return parts_->rrefs.lifecycle().report();
}

void WeftAgent::warnAboutLeakedRRefs(bool ignored) const {
  if (parts_->context.process.holds()) parts_->rrefs.warnAboutLeaks(ignored);
}

void WeftAgent::addGilWaitTime(std::chrono::microseconds wait) {
  parts_->context.metrics.gil_wait_us.fetch_add(static_cast<std::uint64_t>(wait.count()),
                                                std::memory_order_relaxed);
  parts_->context.metrics.gil_waits.fetch_add(1, std::memory_order_relaxed);
}

std::vector<WeftAgent::WaitingCall> WeftAgent::waitingCalls(std::size_t most) const {
  std::vector<WaitingCall> calls;
  const auto now = Clock::now();
  for (const auto& call : parts_->client.oldestCalls(most)) {
    calls.push_back({nameOf(call.peer), kindOf(call.type),
                     std::chrono::duration<double>(now - call.started).count(), call.timeout});
  }
  return calls;
}

const AgentMetrics& WeftAgent::counters() const noexcept { return parts_->context.metrics; }

std::unordered_map<std::string, std::string> WeftAgent::getMetrics() {
  checkProcess("metrics of RPC");
  std::unordered_map<std::string, std::string> out;
  const auto put = [&](const char* key, auto value) { out[key] = std::to_string(value); };
  const AgentContext& context = parts_->context;
  const AgentMetrics& metrics = context.metrics;
  metrics.addTo(out);
  put("agent.requests_refused_by_policy", parts_->server.refusedByPolicy());
  const RRefTable::Counts rrefs = parts_->rrefs.lifecycle().counts();
  put("agent.rref_forks_released", rrefs.released);
  put("agent.rref_repeats_ignored", rrefs.repeats);
  put("agent.thread_pool_size", context.workers.maxThreads());
  put("agent.num_idle_threads", context.workers.idleThreads());
  const auto& pool = parts_->receive_pool;
  put("agent.receive_pool_bytes", pool != nullptr ? pool->heldBytes() : 0);
  if (isGILProfilingEnabled()) {
    const std::uint64_t waits = metrics.gil_waits.load();
    const auto total = static_cast<double>(metrics.gil_wait_us.load());
    put("agent.gil_average_wait_time_us", waits == 0 ? 0 : total / static_cast<double>(waits));
  }
  parts_->sender.addMetrics(out);
  return out;
}

}  // namespace weft::rpc
