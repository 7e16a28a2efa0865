// WeftAgent: what the transport's loop thread calls. Short, never blocking.
#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using transport::Disposition;

transport::Message WeftAgent::encoded(WireKind kind, std::uint64_t call_id,
                                      const c10::intrusive_ptr<Message>& message,
                                      const DeviceMap& map, const std::string& peer) {
  transport::Message out = encode(kind, call_id, message, map, peer);
  // A tensor's memory may be a Python object's: letting go of it takes the GIL and may run a
  // destructor of the program's, which may wait for the loop thread. The endpoint holds the
  // buffers, and ends before the pool does.
  for (transport::OwnedBuffer& buffer : out.buffers) {
    void* const memory = buffer.owner.get();
    buffer.owner = {memory, [this, owner = std::move(buffer.owner)](void*) mutable {
                      if (endpoint_->onLoopThread()) dropElsewhere(std::move(owner));
                    }};
  }
  return out;
}

bool WeftAgent::wants(std::int32_t from, std::span<const std::byte> header,
                      std::span<const std::uint64_t> sizes) {
  WireHeader head;
  if (!WireReader(header).header(head)) return true;  // begin() refuses it with the reason
  const auto peer = static_cast<worker_id_t>(from);
  if (head.kind == WireKind::kResponse || head.kind == WireKind::kControlAck) {
    return pending_.waits(head.call_id, peer);  // else it came too late: take no memory for it
  }
  if (head.kind != WireKind::kRequest) return true;
  std::uint64_t bytes = header.size();
  for (const std::uint64_t size : sizes)
    bytes += size;
  std::uint64_t held = 0;
  {
    const std::lock_guard lock(inflight_mutex_);
    held = inflight_bytes_[peer];
  }
  const std::uint64_t limit = config_.options.max_inflight_bytes;
  if (bytes <= limit && held <= limit - bytes) return true;
  // A payload that is not in the header has not been read, and its RRefs stay unknown.
  const auto* payload = reinterpret_cast<const char*>(head.payload.data());
  refuseRequest(peer, head.call_id, {payload, head.payload.size()},
                "its " + std::to_string(bytes) + " bytes and the " + std::to_string(held) +
                    " bytes of that worker's unfinished requests exceed max_inflight_bytes (" +
                    std::to_string(limit) + ")");
  return false;
}

Disposition WeftAgent::onHeader(std::int32_t from, std::span<const std::byte> header,
                                std::span<const std::uint64_t> sizes,
                                std::vector<transport::OwnedBuffer>& buffers) {
  if (!wants(from, header, sizes)) return Disposition::kDiscard;
  auto in = IncomingMessage::begin(header, sizes, buffers, receive_pool_.get());
  if (!in.ok()) {
    logWarning(me() + " closes its link to worker '" +
               directory_.nameOf(static_cast<worker_id_t>(from)) +
               "': a message of it is malformed: " + in.error().text());
    return Disposition::kRefuse;
  }
  reading_[from] = std::move(in).value();
  return Disposition::kAccept;
}

void WeftAgent::onMessage(std::int32_t from, std::span<const std::byte> /*header*/,
                          std::vector<transport::OwnedBuffer> /*buffers*/) {
  const std::shared_ptr<IncomingMessage> in = std::move(reading_[from]);
  const auto peer = static_cast<worker_id_t>(from);
  switch (in->kind()) {
    case WireKind::kRequest:
      onRequest(peer, in);
      break;
    case WireKind::kResponse:
      onResponse(peer, in);
      break;
    case WireKind::kControl:
      onControl(peer, *in);
      break;
    case WireKind::kControlAck:
      onControlAck(peer, *in);
      break;
  }
}

void WeftAgent::noteLoss(worker_id_t peer, const transport::Error& reason) {
  const std::lock_guard lock(loss_mutex_);
  losses_[peer] = former_losses_[peer] = reason.text();
}

void WeftAgent::onPeerLost(const transport::PeerLoss& loss) {
  const auto peer = static_cast<worker_id_t>(loss.rank);
  reading_.erase(loss.rank);
  noteLoss(peer, loss.reason);
  rrefs_.lose(peer);
  completers_.run([self = shared_from_this(), peer] { self->rrefs_.orphan(peer); });
  if (!closing_ && loss.reason.code() != transport::ErrorCode::kPeerClosed) {
    logWarning(loss.reason.text());
  }
  for (PendingCall& call : pending_.takeAllOf(peer))
    failCall(std::move(call), loss.reason.text());
  // One that left in order is no longer in the directory.
  if (!isStaticGroup() && !closing_ && directory_.find(peer) != nullptr) {
    completers_.run([self = shared_from_this(), peer] { self->forgetMember(peer); });
  }
  cleanUpAfter(peer);
}

void WeftAgent::onPeerJoined(const transport::PeerInfo& peer) {
  // Its kJoin message follows; until then answers to it can already be addressed.
  directory_.add(peer.name, static_cast<worker_id_t>(peer.rank));
}

void WeftAgent::onSendFailed(std::int32_t to, std::span<const std::byte> header,
                             const transport::Error& reason) {
  WireHeader head;
  if (!WireReader(header).header(head)) return;
  if (head.kind != WireKind::kRequest && head.kind != WireKind::kControl) return;
  // onPeerLost follows at once; but what this call's failure sets going on other threads asks for
  // the loss before. An endpoint that closes has lost nobody.
  if (reason.code() != transport::ErrorCode::kShutdown) {
    noteLoss(static_cast<worker_id_t>(to), reason);
  }
  if (auto call = pending_.take(head.call_id, static_cast<worker_id_t>(to))) {
    failCall(std::move(*call), reason.text());
  }
}

}  // namespace weft::rpc
