#include "rpc_backend/codec/message_sender.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "transport/memory/exported_block.h"

namespace weft::rpc {

namespace {

using Metrics = std::unordered_map<std::string, std::string>;

constexpr milliseconds kCloseLinger{2000};

void put(Metrics& out, const std::string& key, std::uint64_t value) {
  out["agent." + key] = std::to_string(value);
}

void addPeer(const transport::PeerStats& peer, Metrics& out) {
  const std::string key = "peer." + peer.name + ".";
  put(out, key + "bytes_sent", peer.bytes_sent);
  put(out, key + "bytes_received", peer.bytes_received);
  put(out, key + "messages_sent", peer.messages_sent);
  put(out, key + "messages_received", peer.messages_received);
  put(out, key + "queued_bytes", peer.queued_bytes);
  put(out, key + "arena_bytes_sent", peer.arena_bytes_sent);
  put(out, key + "bulk_bytes_sent", peer.bulk_bytes_sent);
  put(out, key + "arena_fallbacks", peer.arena_fallbacks);
  put(out, key + "reconnects", peer.reconnects);
  out["agent." + key + "transport"] = peer.transport;
}

void addRefused(const transport::EndpointStats& stats, Metrics& out) {
  std::uint64_t all = 0;
  for (std::size_t cause = 0; cause < transport::kRefusalCauses.size(); ++cause) {
    put(out, std::string("connections_refused_by_") + transport::kRefusalCauses[cause],
        stats.refused[cause]);
    all += stats.refused[cause];
  }
  put(out, "connections_refused", all);
}

}  // namespace

void MessageSender::open(transport::EndpointOptions options, transport::EndpointHandler& handler) {
  auto endpoint = transport::Endpoint::create(std::move(options), handler);
  TORCH_CHECK(endpoint.ok(), context_.me(), ": ", endpoint.error().text());
  endpoint_ = std::move(endpoint).value();
}

void MessageSender::close() {
  if (!endpoint_) return;
  devices_.settle();
  endpoint_->close(context_.hurried ? milliseconds(0) : kCloseLinger);
}

std::string MessageSender::transportTo(worker_id_t peer) const {
  if (endpoint_ == nullptr) return {};
  for (const transport::PeerStats& stats : endpoint_->stats().peers)
    if (stats.rank == peer) return stats.transport;
  return {};
}

transport::Error MessageSender::send(worker_id_t to, WireKind kind, std::uint64_t call_id,
                                     const MessagePtr& message, const DeviceMap& map,
                                     const std::string& peer, milliseconds call_timeout,
                                     milliseconds room_wait) try {
  transport::Message out = encode(kind, call_id, message, map, peer, call_timeout, {&devices_, to});
  for (transport::OwnedBuffer& buffer : out.buffers) {
    void* const memory = buffer.owner.get();
    buffer.owner = {memory, [this, owner = std::move(buffer.owner)](void*) mutable {
                      if (endpoint_->onLoopThread()) context_.dropElsewhere(std::move(owner));
                    }};
  }
  auto error = endpoint_->send(to, std::move(out), room_wait);
  if (error) devices_.takeBack({to, kind, call_id});
  return error;
} catch (...) {
  devices_.takeBack({to, kind, call_id});  // encode() may have lent some tensors before it failed
  throw;
}

transport::Error MessageSender::sendControl(worker_id_t to, WireKind kind, ControlType type,
                                            std::uint64_t call_id, const std::string& text,
                                            milliseconds room_wait) {
  return endpoint_->send(to, encodeControl(kind, static_cast<std::uint16_t>(type), call_id, text),
                         room_wait);
}

void MessageSender::addMetrics(Metrics& out) const {
  if (endpoint_ == nullptr) return;
  const transport::EndpointStats stats = endpoint_->stats();
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const transport::PeerStats& peer : stats.peers) {
    addPeer(peer, out);
    sent += peer.bytes_sent;
    received += peer.bytes_received;
  }
  put(out, "bytes_sent", sent);
  put(out, "bytes_received", received);
  const auto exported = transport::ExportedBlock::stats();
  put(out, "zero_copy_bytes_sent", exported.bytes_sent);
  put(out, "exported_bytes_held", exported.bytes_held);
  put(out, "device_bytes_lent", devices_.bytesLent());
  put(out, "device_bytes_staged", devices_.bytesStaged());
  put(out, "device_messages_held", devices_.messagesLent());
  addRefused(stats, out);
}

void MessageSender::runOnCompleterAfter(milliseconds delay, std::function<void()> task) {
  endpoint_->runAfter(delay, [this, task = std::move(task)]() mutable {
    context_.completers.run(std::move(task));
  });
}

}  // namespace weft::rpc
