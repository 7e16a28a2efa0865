// WeftAgent: what it knows of the group and of itself.
#include <algorithm>

#include "rpc_backend/agent/weft_agent.h"
#include "transport/memory/exported_block.h"

namespace weft::rpc {

const WeftAgent::WorkerInfo& WeftAgent::getWorkerInfo(const std::string& name) const {
  return directory_.byName(name);
}

const WeftAgent::WorkerInfo& WeftAgent::getWorkerInfo(worker_id_t id) const {
  // torch asks for the owner of an RRef, which may have left in the meantime.
  const WorkerInfo* known = directory_.everKnown(id);
  return known != nullptr ? *known : directory_.byId(id);
}

std::vector<WeftAgent::WorkerInfo> WeftAgent::getWorkerInfos() const { return directory_.all(); }

DeviceMap WeftAgent::getDeviceMap(const WorkerInfo& to) const {
  const auto found = config_.options.device_maps.find(to.name_);
  return found == config_.options.device_maps.end() ? DeviceMap{} : found->second;
}

bool WeftAgent::everyoneServesPython() const {
  const std::string any = toString(RequestPolicy::kAny);
  const std::lock_guard lock(maps_mutex_);
  return config_.options.request_policy == RequestPolicy::kAny &&
         std::all_of(members_.begin(), members_.end(),
                     [&](const MemberRecord& member) { return member.policy == any; });
}

std::optional<std::string> WeftAgent::lossOf(worker_id_t id) const {
  const std::lock_guard lock(loss_mutex_);
  const auto found = losses_.find(id);
  if (found == losses_.end()) return std::nullopt;
  return found->second;
}

void WeftAgent::addGilWaitTime(std::chrono::microseconds wait) {
  metrics_.gil_wait_us.fetch_add(static_cast<std::uint64_t>(wait.count()),
                                 std::memory_order_relaxed);
  metrics_.gil_waits.fetch_add(1, std::memory_order_relaxed);
}

std::unordered_map<std::string, std::string> WeftAgent::getMetrics() {
  std::unordered_map<std::string, std::string> out;
  metrics_.addTo(out);
  const RRefTable::Counts rrefs = rrefs_.counts();
  out["agent.rref_forks_released"] = std::to_string(rrefs.released);
  out["agent.rref_repeats_ignored"] = std::to_string(rrefs.repeats);
  out["agent.thread_pool_size"] = std::to_string(workers_.maxThreads());
  out["agent.num_idle_threads"] = std::to_string(workers_.idleThreads());
  out["agent.receive_pool_bytes"] =
      std::to_string(receive_pool_ != nullptr ? receive_pool_->heldBytes() : 0);
  if (isGILProfilingEnabled()) {
    const std::uint64_t waits = metrics_.gil_waits.load();
    const double average =
        waits == 0 ? 0
                   : static_cast<double>(metrics_.gil_wait_us.load()) / static_cast<double>(waits);
    out["agent.gil_average_wait_time_us"] = std::to_string(average);
  }
  if (!endpoint_) return out;
  const auto stats = endpoint_->stats();
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const transport::PeerStats& peer : stats.peers) {
    const std::string key = "agent.peer." + peer.name + ".";
    out[key + "bytes_sent"] = std::to_string(peer.bytes_sent);
    out[key + "bytes_received"] = std::to_string(peer.bytes_received);
    out[key + "messages_sent"] = std::to_string(peer.messages_sent);
    out[key + "messages_received"] = std::to_string(peer.messages_received);
    out[key + "queued_bytes"] = std::to_string(peer.queued_bytes);
    out[key + "arena_bytes_sent"] = std::to_string(peer.arena_bytes_sent);
    out[key + "bulk_bytes_sent"] = std::to_string(peer.bulk_bytes_sent);
    out[key + "arena_fallbacks"] = std::to_string(peer.arena_fallbacks);
    out[key + "reconnects"] = std::to_string(peer.reconnects);
    out[key + "transport"] = peer.transport;
    sent += peer.bytes_sent;
    received += peer.bytes_received;
  }
  const auto exported = transport::ExportedBlock::stats();
  out["agent.zero_copy_bytes_sent"] = std::to_string(exported.bytes_sent);
  out["agent.exported_bytes_held"] = std::to_string(exported.bytes_held);
  out["agent.bytes_sent"] = std::to_string(sent);
  out["agent.bytes_received"] = std::to_string(received);
  const std::uint64_t refused = stats.refused_key + stats.refused_group + stats.refused_identity +
                                stats.refused_version + stats.refused_replay +
                                stats.refused_timeout + stats.refused_overload +
                                stats.refused_malformed;
  out["agent.connections_refused"] = std::to_string(refused);
  return out;
}

}  // namespace weft::rpc
