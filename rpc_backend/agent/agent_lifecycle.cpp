// WeftAgent: how it comes up, meets the others, leaves and ends.
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "rpc_backend/agent/torch_ids.h"
#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/control.h"
#include "rpc_backend/core/env.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/group/shutdown_barrier.h"
#include "transport/io/interface.h"

namespace weft::rpc {

using std::chrono::milliseconds;
using torch::distributed::rpc::RequestCallback;

namespace {

// Callbacks of futures may wait for further calls, which need a thread to complete them:
// enough for any nesting seen in practice, and threads are started only when needed.
constexpr std::size_t kMaxCompleters = 256;
// Destructors may wait for calls. Nothing waits for them, so few threads will do.
constexpr std::size_t kMaxDroppers = 16;
constexpr milliseconds kCloseLinger{2000};
constexpr milliseconds kPoolGrace{10000};
constexpr milliseconds kControlTimeout{10000};
constexpr const char* kBarriersKey = "barriers";  // how many the group has passed

milliseconds fromSeconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

std::shared_ptr<WeftAgent> WeftAgent::create(Config config,
                                             std::unique_ptr<RequestCallback> callback) {
  config.options.check();
  env::warnAboutUnknownOnce();
  std::shared_ptr<WeftAgent> agent(new WeftAgent(std::move(config), std::move(callback)));
  try {
    agent->registerWithTorch();
  } catch (...) {
    agent->shutdownImpl();
    throw;
  }
  return agent;
}

WeftAgent::WeftAgent(Config config, std::unique_ptr<RequestCallback> callback)
    : RpcAgent(WorkerInfo(config.name, config.rank), std::move(callback),
               fromSeconds(config.options.rpcTimeoutSeconds)),
      config_(std::move(config)),
      membership_(config_.store, config_.name, config_.rank, config_.world_size.value_or(0)),
      faults_(config_.faults ? std::make_unique<FaultPlan>(*config_.faults) : nullptr),
      rrefs_(config_.rank, rrefHooks()),
      workers_("weft-worker", std::max<std::size_t>(2, std::thread::hardware_concurrency()),
               static_cast<std::size_t>(config_.options.num_worker_threads), config_.thread_hooks),
      completers_("weft-complete", 1, kMaxCompleters, config_.thread_hooks),
      droppers_("weft-drop", 1, kMaxDroppers, config_.thread_hooks),
      receive_pool_(transport::WarmPool::create()) {}

RRefHooks WeftAgent::rrefHooks() {
  RRefHooks hooks = config_.rref_hooks;
  if (hooks.drop)
    hooks.later = [this](std::function<void()> task) { droppers_.run(std::move(task)); };
  return hooks;
}

WeftAgent::~WeftAgent() {
  if (rpcAgentRunning_.load()) shutdown();
  shutdownImpl();
}

std::string WeftAgent::me() const {
  return "worker '" + config_.name + "' (rank " + std::to_string(config_.rank) + ")";
}

void WeftAgent::openEndpoint(const GroupSecret& secret) {
  const WeftRpcBackendOptions& options = config_.options;
  const std::string wanted =
      options.interface.empty() ? env::value(env::kSocketIfname) : options.interface;
  auto listen = transport::chooseListenAddress(options.master_host, wanted);
  TORCH_CHECK(listen.ok(), me(), ": ", listen.error().text());
  // Without a master's name (file:// rendezvous) the choice is a guess that mostly fits; with one,
  // a note says that the network's names are not as they should be.
  if (!listen.value().note.empty()) {
    logLine(options.master_host.empty() ? LogLevel::kInfo : LogLevel::kWarning,
            listen.value().note);
  }

  transport::EndpointOptions wire;
  wire.group_id = secret.group_id;
  wire.name = config_.name;
  wire.rank = config_.rank;
  wire.key = secret.key;
  wire.listen_address = listen.value().address;
  wire.unix_socket = env::value(env::kUnixSocket) != "0";
  wire.accept_unknown_peers = !isStaticGroup();
  wire.accept_successors = true;
  wire.heartbeat_interval = fromSeconds(options.heartbeat_interval);
  wire.peer_timeout = fromSeconds(options.peer_timeout);
  wire.reconnect_timeout = fromSeconds(options.reconnect_timeout);
  wire.limits.max_message_bytes = options.max_message_bytes;
  wire.arena.enabled = env::value(env::kSharedMemory) != "0";
  wire.bulk.enabled = env::value(env::kTcpConnections) != "1";
  wire.receive_pool = receive_pool_;
  adoptTransportLog();
  auto endpoint = transport::Endpoint::create(std::move(wire), *this);
  TORCH_CHECK(endpoint.ok(), me(), ": ", endpoint.error().text());
  endpoint_ = std::move(endpoint).value();
}

MemberRecord WeftAgent::ownRecord(const GroupSecret& secret) const {
  MemberRecord record;
  record.rank = config_.rank;
  record.world = config_.world_size.value_or(0);
  record.name = config_.name;
  record.auth = secret.auth;
  record.key_check = secret.key_check;
  record.policy = toString(config_.options.request_policy);
  record.address = endpoint_->address();
  record.device_count = config_.device_count;
  record.devices = config_.options.devices;
  record.device_maps = config_.options.device_maps;
  return record;
}

void WeftAgent::registerWithTorch() {
  const std::string key_file = config_.options.auth_key_file.empty()
                                   ? env::value(env::kAuthKeyFile)
                                   : config_.options.auth_key_file;
  const GroupSecret secret = membership_.secret(key_file);
  openEndpoint(secret);
  const MemberRecord self = ownRecord(secret);
  directory_.add(config_.name, config_.rank);
  std::vector<MemberRecord> members =
      isStaticGroup() ? membership_.meet(self) : membership_.join(self);
  if (membership_.returned()) beginAnew();
  for (const MemberRecord& member : members)
    admit(member);
  {
    std::vector<MemberRecord> all = members;
    all.push_back(self);
    checkDeviceMaps(all, isStaticGroup());
    const std::lock_guard lock(maps_mutex_);
    reverse_maps_ = reverseMaps(all, config_.name);
    devices_ = devicesInUse(config_.options.devices, config_.options.device_maps, reverse_maps_);
  }
  if (!isStaticGroup() || membership_.returned()) announce(members);
}

void WeftAgent::admit(const MemberRecord& member) {
  const auto error = endpoint_->addPeer({member.rank, member.name, member.address});
  TORCH_CHECK(!error, me(), " cannot take in worker '", member.name, "' (rank ", member.rank,
              "): ", error.text());
  {
    const std::lock_guard lock(loss_mutex_);
    losses_.erase(static_cast<worker_id_t>(member.rank));
  }
  directory_.add(member.name, static_cast<worker_id_t>(member.rank));
  const std::lock_guard lock(maps_mutex_);
  std::erase_if(members_, [&](const MemberRecord& known) { return known.rank == member.rank; });
  members_.push_back(member);
  // Streams of devices_ are fixed when the agent is made; only the maps follow the group.
  reverse_maps_ = reverseMaps(members_, config_.name);
}

// This rank had a former life. What the others still have of it, and what is still on its way to
// it, must not be taken for this one's.
void WeftAgent::beginAnew() {
  startIdsAnew(config_.rank);
  pending_.startAt(static_cast<std::uint64_t>(randomFirstId()));
  const auto store = membership_.store();
  if (isStaticGroup() && store->check({kBarriersKey})) {
    barriers_.store(std::stoi(store->get_to_str(kBarriersKey)));
  }
}

void WeftAgent::announce(const std::vector<MemberRecord>& members) {
  const std::string text = [&] {
    const GroupSecret none;
    MemberRecord self = ownRecord(none);
    return self.toText();
  }();
  std::vector<std::pair<const MemberRecord*, c10::intrusive_ptr<JitFuture>>> acks;
  acks.reserve(members.size());
  for (const MemberRecord& member : members) {
    acks.emplace_back(&member, sendControl(static_cast<worker_id_t>(member.rank),
                                           static_cast<std::uint16_t>(ControlType::kJoin), text,
                                           kControlTimeout));
  }
  for (auto& [member, ack] : acks) {
    ack->wait();
    if (!ack->hasError()) continue;
    if (isStaticGroup()) {
      logInfo(me() + " is back, but could not tell worker '" + member->name +
              "': " + ack->tryRetrieveErrorMessage());
      continue;
    }
    // It died without leaving, or dies now: the group goes on without it.
    logWarning(me() + " could not reach worker '" + member->name + "' while joining: " +
               ack->tryRetrieveErrorMessage() + " It is taken off the group's list.");
    membership_.forget(member->rank, member->address);
    directory_.remove(static_cast<worker_id_t>(member->rank));
    endpoint_->removePeer(member->rank);
  }
}

void WeftAgent::forgetMember(worker_id_t id) {
  std::string address;
  {
    const std::lock_guard lock(maps_mutex_);
    for (const MemberRecord& member : members_) {
      if (member.rank == id) address = member.address;
    }
  }
  try {
    membership_.forget(id, address);
  } catch (const std::exception& error) {
    logInfo("a lost worker could not be taken off the group's list: " + std::string(error.what()));
  }
}

void WeftAgent::startImpl() {
  if (config_.before_serving) config_.before_serving();
  std::vector<std::function<void()>> early;
  {
    const std::lock_guard lock(early_mutex_);
    serving_ = true;
    early.swap(early_requests_);
  }
  for (auto& task : early)
    workers_.run(std::move(task));
}

std::vector<std::int32_t> WeftAgent::barrier(float timeout_seconds, bool last) {
  const auto timeout = fromSeconds(timeout_seconds);
  TORCH_CHECK(isStaticGroup(), me(), ": only a group of fixed size has a barrier");
  const int index = barriers_.fetch_add(1);
  ShutdownBarrier barrier(
      membership_.store(), index, config_.rank, *config_.world_size,
      {.active_calls =
           [&] {
             const auto started = Clock::now();
             while (!metrics_.client_calls.waitForZero(milliseconds(250)) &&
                    (timeout.count() == 0 || Clock::now() - started < timeout)) {
             }
             return metrics_.client_calls.value();
           },
       .calls_sent = [&] { return static_cast<std::int64_t>(metrics_.calls_sent.load()); },
       .is_lost =
           [&](std::int32_t rank) { return lossOf(static_cast<worker_id_t>(rank)).has_value(); },
       .probe =
           [&](std::int32_t rank) {
             sendControl(static_cast<worker_id_t>(rank),
                         static_cast<std::uint16_t>(ControlType::kPing), "", kControlTimeout);
           },
       .describe =
           [&](std::int32_t rank) {
             return "worker '" + directory_.nameOf(static_cast<worker_id_t>(rank)) + "' (rank " +
                    std::to_string(rank) + ")";
           }});
  const auto lost = barrier.wait(timeout);
  membership_.store()->set(kBarriersKey, std::to_string(index + 1));
  for (const std::int32_t rank : lost) {
    logWarning("rpc.shutdown went on without a missing worker: " +
               lossOf(static_cast<worker_id_t>(rank)).value_or("?"));
  }
  if (last) barrier.linger(fromSeconds(config_.options.peer_timeout));
  return {lost.begin(), lost.end()};
}

void WeftAgent::join(bool shutdown, float timeout_seconds) {
  if (isStaticGroup()) {
    if (shutdown) {
      barrier(timeout_seconds, /*last=*/true);
    } else {
      metrics_.client_calls.waitForZero(timeout_seconds > 0 ? fromSeconds(timeout_seconds)
                                                            : milliseconds(1000 * 3600));
    }
    return;
  }
  const auto limit = timeout_seconds > 0 ? fromSeconds(timeout_seconds) : membership_.timeout();
  TORCH_CHECK(metrics_.client_calls.waitForZero(limit), me(),
              " cannot leave: calls it made are still in flight after ", limit.count(), " ms");
  leaveDynamicGroup();
}

void WeftAgent::leaveDynamicGroup() {
  membership_.leave();
  std::vector<c10::intrusive_ptr<JitFuture>> acks;
  for (const worker_id_t id : directory_.ids()) {
    if (id == config_.rank || lossOf(id)) continue;
    acks.push_back(sendControl(id, static_cast<std::uint16_t>(ControlType::kLeave), "",
                               fromSeconds(config_.options.peer_timeout)));
  }
  // An error here means that the peer is gone too, or will see our goodbye: either way it
  // knows.
  for (auto& ack : acks)
    ack->wait();
}

void WeftAgent::shutdownImpl() {
  if (closing_.exchange(true)) return;
  // First the wire, so that nothing new arrives; then everybody who waits; then the threads.
  if (endpoint_) endpoint_->close(kCloseLinger);
  for (PendingCall& call : pending_.takeAll()) {
    const bool settled =
        RRefLifecycle::isControl(static_cast<torch::distributed::rpc::MessageType>(call.type)) &&
        nothingLeftToSay(call.peer, call.type);
    finishCall([&] {
      if (settled) {
        call.future->markCompleted(RRefLifecycle::ack());
        return;
      }
      call.future->setErrorIfNeeded(std::make_exception_ptr(
          std::runtime_error(me() + " is shutting down: RPC is no longer running on this node.")));
    });
  }
  workers_.stop(kPoolGrace);
  droppers_.stop(kPoolGrace, WorkerPool::Waiting::kRun);
  completers_.stop(kPoolGrace, WorkerPool::Waiting::kRun);
  std::vector<std::function<void()>> dropped;
  const std::lock_guard lock(early_mutex_);
  early_requests_.swap(dropped);
}

}  // namespace weft::rpc
