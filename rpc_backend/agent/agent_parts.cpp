#include "rpc_backend/agent/agent_parts.h"

#include <c10/util/Exception.h>

#include <utility>

#include "rpc_backend/core/log.h"
#include "rpc_backend/torch_private/torch_ids.h"
#include "transport/base/environment.h"
#include "transport/environment_options.h"
#include "transport/io/interface.h"

namespace weft::rpc {

namespace {

transport::EndpointOptions endpointOptions(const AgentContext& context) {
  const WeftRpcBackendOptions& options = context.options;
  transport::EndpointOptions out;
  out.name = context.name;
  out.rank = context.rank;
  out.reunite = true;
  out.heartbeat_interval = fromSeconds(options.heartbeat_interval);
  out.peer_timeout = fromSeconds(options.peer_timeout);
  out.reconnect_timeout = fromSeconds(options.reconnect_timeout);
  out.limits.max_message_bytes = options.max_message_bytes;
  out.limits.skip_too_large = true;
  out.limits.max_buffers = kMaxTensors + 2;  // a payload, the tensors and the byte behind them
  return out;
}

// An idle worker waits for the network itself, so that it runs the request that it reads.
IdleWork drivingOf(const std::shared_ptr<transport::Endpoint>& endpoint, transport::Driver kind) {
  return {[endpoint, kind](const std::function<bool()>& done, transport::AdaptiveSpin& spin) {
            const auto never = transport::Deadline::max();
            return endpoint->drive(kind, done, never, spin) == transport::Driven::kDone;
          },
          [endpoint, kind] { endpoint->wakeDriver(kind); }};
}

}  // namespace

AgentParts::AgentParts(AgentConfig& config, std::unique_ptr<RequestCallback> callback)
    : context(config.name, static_cast<worker_id_t>(config.rank), config.options,
              config.thread_hooks),
      sender(context),
      group(
          context, sender,
          [this](worker_id_t to, ControlType type, const std::string& text, milliseconds timeout) {
            return client.callControl(to, type, text, timeout);
          },
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

void AgentParts::join() {
  context.prepareThreads();
  const transport::GroupSecret secret = group.secret();
  open(secret);
  group.join(secret);
  if (group.wasRestarted()) {
    // What the others still have of this rank's former life, and what is on its way to it, must
    // not be taken for this one's.
    torch_rrefs::startIdsAnew(context.rank);
    client.startIdsAt(static_cast<std::uint64_t>(torch_rrefs::randomFirstId()));
  }
  group.announce();
}

void AgentParts::open(const transport::GroupSecret& secret) {
  const WeftRpcBackendOptions& options = context.options;
  const auto listen = transport::chooseListenAddress(
      options.master_host, options.interface.empty()
                               ? environment::value(environment::kSocketIfname)
                               : options.interface);
  TORCH_CHECK(listen.ok(), context.me(), ": ", listen.error().text());
  // Without a master's name (file:// rendezvous) the choice is a guess that mostly fits; with one,
  // the note says that the host's names are set up wrong.
  if (!listen.value().note.empty()) {
    transport::log(options.master_host.empty() ? LogLevel::kInfo : LogLevel::kWarning,
                   listen.value().note);
  }
  auto wire = endpointOptions(context);
  wire.group_id = secret.group_id;
  wire.key = secret.key;
  const transport::Error wrong = transport::applyEnvironment(wire, secret.from_file);
  TORCH_CHECK_VALUE(!wrong, context.me(), ": ", wrong.text());
  wire.listen_address = listen.value().address;
  wire.accept_unknown_peers = !group.isStatic();
  wire.receive_pool = receive_pool;
  sender.open(std::move(wire), router);
  for (const auto kind : {transport::Driver::kServer, transport::Driver::kNextServer})
    context.workers.addIdleWork(drivingOf(sender.endpoint(), kind));
}

void AgentParts::close() {
  using Phase = AgentContext::Phase;
  if (context.phase.exchange(Phase::kClosed) == Phase::kClosed) return;
  // First the connections, so that nothing new arrives; then whoever waits; then the threads.
  sender.close();
  client.close();
  context.stopThreads();
  sender.devices().close();
}

void AgentParts::addMetrics(std::unordered_map<std::string, std::string>& out, bool gil) {
  const auto put = [&](const char* key, auto value) { out[key] = std::to_string(value); };
  context.metrics.addTo(out);
  const RRefTable::Counts counts = rrefs.lifecycle().counts();
  put("agent.rref_forks_released", counts.released);
  put("agent.rref_repeats_ignored", counts.repeats);
  put("agent.thread_pool_size", context.workers.maxThreads());
  put("agent.num_idle_threads", context.workers.idleThreads());
  put("agent.receive_pool_bytes", receive_pool != nullptr ? receive_pool->heldBytes() : 0);
  sender.addMetrics(out);
  if (!gil) return;
  const std::uint64_t waits = context.metrics.gil_waits.load();
  const auto total = static_cast<double>(context.metrics.gil_wait_us.load());
  put("agent.gil_average_wait_time_us", waits == 0 ? 0 : total / static_cast<double>(waits));
}

}  // namespace weft::rpc
