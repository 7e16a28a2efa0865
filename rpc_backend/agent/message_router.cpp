#include "rpc_backend/agent/message_router.h"

#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "rpc_backend/core/log.h"
#include "rpc_backend/wire/wire_reader.h"
#include "transport/base/peer_name.h"

namespace weft::rpc {

using transport::Disposition;

namespace {

// The worker that has this name and another rank, and is not lost.
std::optional<worker_id_t> liveNamesake(const Group& group, const transport::PeerInfo& peer) {
  const WorkerInfo* const known = group.directory().find(peer.name);
  if (known == nullptr || known->id_ == peer.rank || group.lossOf(known->id_)) return std::nullopt;
  return known->id_;
}

// torch numbers workers in 16 bits, the transport numbers peers in 32. A peer of a higher rank
// would be taken for another worker.
bool isWorker(std::int32_t rank) { return rank <= std::numeric_limits<worker_id_t>::max(); }

// What a message's tensors take beside their bytes. A malformed tensor counts nothing, because
// begin() refuses the message.
std::uint64_t costOfTensors(WireReader& reader, std::uint32_t count) {
  std::uint64_t cost = 0;
  TensorMeta meta;
  for (; count > 0 && reader.tensor(meta, &itemSize); --count)
    cost += costOf(meta);
  return cost;
}

}  // namespace

bool MessageRouter::admit(worker_id_t from, std::span<const std::byte> header,
                          std::span<const std::uint64_t> sizes) {
  WireHeader head;
  WireReader reader(header);
  if (!reader.header(head)) return true;  // begin() refuses it with the reason
  switch (head.kind) {
    case WireKind::kControl:
      return true;
    case WireKind::kResponse:
    case WireKind::kControlAck:
      // No memory is taken for an answer that comes too late.
      if (client_.waits(head.call_id, from)) return true;
      client_.decliner().decline(from, payloadIn(head));
      return false;
    case WireKind::kRequest:
      break;
  }
  if (const auto why = outside_.find(from); why != outside_.end()) {
    server_.refuse(from, head, why->second);
    return false;
  }
  return server_.admits(from, head,
                        std::accumulate(sizes.begin(), sizes.end(),
                                        header.size() + costOfTensors(reader, head.tensor_count)));
}

Disposition MessageRouter::onHeader(std::int32_t from, std::span<const std::byte> header,
                                    std::span<const std::uint64_t> sizes,
                                    std::vector<transport::OwnedBuffer>& buffers) {
  if (!isWorker(from)) return Disposition::kRefuse;
  const auto peer = static_cast<worker_id_t>(from);
  if (!admit(peer, header, sizes)) {
    giveBack(peer, header);
    return Disposition::kDiscard;
  }
  auto in = IncomingMessage::begin(header, sizes, buffers, receive_pool_);
  if (!in.ok() && drop(peer, header, in.error())) {
    giveBack(peer, header);
    return Disposition::kDiscard;
  }
  if (!in.ok()) {
    logWarning(context_.me() + " closes its connection to " + group_.describe(peer) +
               ": a message from it is malformed: " + in.error().text());
    return Disposition::kRefuse;
  }
  reading_[from] = std::move(in).value();
  return Disposition::kAccept;
}

std::shared_ptr<transport::Arrivals> MessageRouter::arrivals(std::int32_t from) {
  IncomingMessage& in = *reading_.at(from);
  const auto arriving = in.arriving();
  if (arriving.empty()) return nullptr;
  const auto made =
      std::make_shared<DeviceArrivals>([this, parts = context_.parts](std::function<void()> copy) {
        if (const auto alive = parts.lock()) context_.workers.run(std::move(copy));
      });
  for (const auto& [host, device] : arriving)
    made->add(host, device);
  // The loop thread, which must not call CUDA, may be the last to hold it.
  const std::shared_ptr<DeviceArrivals> early(
      made.get(), [this, parts = context_.parts, made](DeviceArrivals*) mutable {
        if (const auto alive = parts.lock()) context_.dropElsewhere(std::move(made));
      });
  in.copyEarly(early);
  return early;
}

void MessageRouter::giveBack(worker_id_t from, std::span<const std::byte> header) {
  WireHeader head;
  if (WireReader(header).header(head) && head.device_memory)
    sender_.devices().borrow({from, head.kind, head.call_id});  // dropped at once
}

bool MessageRouter::drop(worker_id_t from, std::span<const std::byte> header,
                         const transport::Error& why) {
  WireHeader head;
  if (why.code() != transport::ErrorCode::kLimitExceeded || !WireReader(header).header(head))
    return false;
  if (head.kind == WireKind::kRequest) {
    server_.refuse(from, head, why.text());
  } else if (head.kind == WireKind::kResponse) {
    client_.onSendFailed(from, head.call_id,
                         context_.me() + " cannot take the answer of worker '" +
                             group_.directory().nameOf(from) + "': " + why.text());
    client_.decliner().decline(from, payloadIn(head));
  } else {
    return false;
  }
  return true;
}

void MessageRouter::onTooLarge(std::int32_t from, std::span<const std::byte> header,
                               const transport::Error& why) {
  if (!isWorker(from)) return;
  const auto peer = static_cast<worker_id_t>(from);
  if (WireHeader head; !WireReader(header).header(head)) {
    return sender_.endpoint()->losePeer(
        from, {transport::ErrorCode::kProtocol,
               group_.describe(peer) + " is cut off: a message from it is malformed"});
  }
  giveBack(peer, header);
  if (drop(peer, header, why)) return;
  logWarning(context_.me() + " ignores a message from " + group_.describe(peer) + ": " +
             why.text());
}

void MessageRouter::onMessage(std::int32_t from, std::span<const std::byte> /*header*/,
                              std::vector<transport::OwnedBuffer> /*buffers*/) {
  std::shared_ptr<IncomingMessage> in = std::move(reading_[from]);
  const auto peer = static_cast<worker_id_t>(from);
  if (in->isLent()) {
    DeviceTransfer& devices = sender_.devices();
    in->setLender(devices, devices.borrow({peer, in->kind(), in->callId()}));
  }
  switch (in->kind()) {
    case WireKind::kRequest:
      server_.onRequest(peer, std::move(in));
      break;
    case WireKind::kResponse:
      client_.answers().onAnswer(peer, in);
      break;
    case WireKind::kControl:
      onControl(peer, *in);
      break;
    case WireKind::kControlAck:
      client_.answers().onControlAck(peer, *in);
      break;
  }
}

void MessageRouter::onControl(worker_id_t from, const IncomingMessage& in) {
  const auto type = static_cast<ControlType>(in.type());
  switch (type) {
    case ControlType::kCancel:
      return server_.onCancel(from, in.callId());
    case ControlType::kCreationsLost:
      return rrefs_.onCreationsLost(from, in.text());
    case ControlType::kDeviceProbe:
      return sender_.devices().onProbe(from, in.callId(), in.text(),
                                       server_.hold(from, in.bytes()));
    case ControlType::kDeviceProbed:
      return sender_.devices().onProbed(from, in.callId(), in.text());
    case ControlType::kDeviceReturned:
      return sender_.devices().onReturned(from, in.callId(), in.text());
    default:
      break;
  }
  // onPeerJoined() did not add a worker that may not have its name.
  const bool nameless = type == ControlType::kJoin && outside_.contains(from);
  const std::string problem = nameless
                                  ? "the name of rank " + std::to_string(from) + " is in use at " +
                                        context_.me() + ": a live worker has it"
                                  : group_.serveControl(from, type, in.text());
  const auto error = sender_.sendControl(from, WireKind::kControlAck, type, in.callId(), problem);
  if (error) logDebug("an acknowledgement was not sent: " + error.text());
}

void MessageRouter::onPeerLost(const transport::PeerLoss& loss) {
  if (!isWorker(loss.rank)) return sender_.endpoint()->removePeer(loss.rank);
  const auto peer = static_cast<worker_id_t>(loss.rank);
  reading_.erase(loss.rank);
  outside_.erase(loss.rank);
  group_.noteLoss(peer, loss.reason);
  sender_.devices().onPeerLost(peer);
  rrefs_.onPeerLost(peer);
  server_.contexts().onPeerLost(peer);
  if (!context_.closed() && loss.reason.code() != transport::ErrorCode::kPeerClosed) {
    logWarning(loss.reason.text());
  }
  client_.onPeerLost(peer, loss.reason.text());
  // A worker that leaves in order does not wait for its calls, but may want them done.
  if (loss.reason.code() != transport::ErrorCode::kPeerClosed) server_.onPeerLost(peer);
  group_.forgetUnlessMember(peer);
  group_.updateList(peer);
  rrefs_.cleanUpAfter(peer);
}

void MessageRouter::onPeerJoined(const transport::PeerInfo& peer) {
  if (!isWorker(peer.rank)) {
    return sender_.endpoint()->losePeer(peer.rank, {transport::ErrorCode::kInvalidArgument,
                                                    transport::describePeer(peer.name, peer.rank) +
                                                        " is cut off: ranks go from 0 to 32767"});
  }
  outside_.erase(peer.rank);
  // The worker that has the name keeps it.
  if (const auto owner = liveNamesake(group_, peer)) {
    std::string& why = outside_[peer.rank];
    why = transport::describePeer(peer.name, peer.rank) + " is not admitted: worker '" + peer.name +
          "' has rank " + std::to_string(*owner) + ", and is alive";
    return logWarning(why);
  }
  // Its kJoin message follows; answers to it can be addressed from now on.
  try {
    group_.directory().add(peer.name, static_cast<worker_id_t>(peer.rank));
  } catch (const c10::Error& error) {
    sender_.endpoint()->losePeer(peer.rank, {transport::ErrorCode::kInvalidArgument,
                                             transport::describePeer(peer.name, peer.rank) +
                                                 " is cut off: " + error.what_without_backtrace()});
  }
}

void MessageRouter::onPeerReturned(const transport::PeerInfo& peer) {
  if (!isWorker(peer.rank)) return;
  const auto outage = group_.noteReturn(static_cast<worker_id_t>(peer.rank));
  rrefs_.onPeerReturned(static_cast<worker_id_t>(peer.rank));
  logWarning(transport::describePeer(peer.name, peer.rank) + " is back after " +
             transport::seconds(outage) +
             ": calls to it work again; RRefs of either to values of the other do not");
}

void MessageRouter::onDisplaced(const transport::PeerLoss& loss) {
  if (!isWorker(loss.rank)) return;
  group_.noteDisplaced(static_cast<worker_id_t>(loss.rank), loss.reason);
}

void MessageRouter::onSendFailed(std::int32_t to, std::span<const std::byte> header,
                                 const transport::Error& reason) {
  WireHeader head;
  if (!WireReader(header).header(head)) return;
  if (head.kind != WireKind::kRequest && head.kind != WireKind::kControl) return;
  const auto peer = static_cast<worker_id_t>(to);
  // onPeerLost() follows, but other threads ask for the loss as soon as the call fails. An endpoint
  // that closes has lost nobody.
  if (reason.code() != transport::ErrorCode::kShutdown) group_.noteLoss(peer, reason);
  client_.onSendFailed(peer, head.call_id, reason.text());
}

}  // namespace weft::rpc
