#include "rpc_backend/serve/request_server.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <span>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/callback/peer_request.h"
#include "rpc_backend/serve/quick_call.h"
#include "rpc_backend/trace/call_range.h"

namespace weft::rpc {

namespace {

constexpr std::size_t kLargestDeletion = 1024;  // bytes that the loop thread reads

// Beyond max_inflight_bytes, for messages that keep tables right: torch sends a refused one a few
// times, then what it was about stays for good.
constexpr std::uint64_t kReserve = std::uint64_t{1} << 20;

// They are about references, and about contexts and backward passes of distributed autograd.
bool keepsTables(MessageType type) {
  return RRefLifecycle::isRRefMessage(type) || type == MessageType::BACKWARD_AUTOGRAD_REQ ||
         type == MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ;
}

}  // namespace

bool RequestServer::hasRoom(std::uint64_t held, std::uint64_t bytes) const {
  const std::uint64_t limit = context_.options.max_inflight_bytes;
  return bytes <= limit && held <= limit - bytes;
}

bool RequestServer::admits(worker_id_t from, const WireHeader& head, std::uint64_t bytes) {
  bytes += kRequestCost;
  const std::uint64_t held = peers_[from].held.load(std::memory_order_relaxed);
  const bool reserved = keepsTables(static_cast<MessageType>(head.type));
  if (hasRoom(reserved ? held - std::min(held, kReserve) : held, bytes)) return true;
  refuse(from, head,
         transport::resourceExhausted(
             c10::str("its ", bytes, " bytes and the ", held,
                      " bytes of that worker's unfinished requests exceed max_inflight_bytes (",
                      context_.options.max_inflight_bytes, ")")));
  return false;
}

std::shared_ptr<void> RequestServer::hold(worker_id_t from, std::uint64_t bytes) {
  bytes += kRequestCost;
  std::atomic<std::uint64_t>& held = peers_[from].held;
  if (!hasRoom(held, bytes)) return nullptr;
  held.fetch_add(bytes, std::memory_order_relaxed);
  return {&held, [bytes, alive = context_.keepAlive()](std::atomic<std::uint64_t>* counted) {
            counted->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

void RequestServer::refuse(worker_id_t from, const WireHeader& head, const std::string& why) {
  responder_.refuse(from, head.call_id, payloadIn(head), why);
}

bool RequestServer::isQuick(const IncomingMessage& in) const {
  // Before start() a request waits for a worker, because the devices may not be known yet.
  if (context_.phase.load(std::memory_order_acquire) == AgentContext::Phase::kJoining) return false;
  if (static_cast<MessageType>(in.type()) == MessageType::RREF_USER_DELETE)
    return in.bytes() <= kLargestDeletion && !in.isLent();
  return looksQuick(in) && group_.devices().empty() && !CallRecorder::get().on() &&
         !CallRange::wanted();
}

bool RequestServer::serveIfQuick(worker_id_t from, IncomingMessage& in) {
  if (!isQuick(in)) return false;
  const RequestPolicy policy = context_.options.request_policy;
  try {
    const auto type = static_cast<MessageType>(in.type());
    if (const auto why = refusal(policy, type, in.payload(), from)) {
      responder_.refuseByPolicy(from, in.callId(), {}, *why);
    } else if (RRefLifecycle::isRRefMessage(type)) {
      serveRRefMessage(from, in, rrefs_.lifecycle().lossCount());
    } else {
      const MessagePtr answer = runQuick(*in.finish(distrustsPeers(policy)));
      context_.metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
      responder_.send(from, in.callId(), answer);
    }
  } catch (const std::exception& error) {
    responder_.fail(from, in.callId(), error.what());
  }
  return true;
}

void RequestServer::serveRRefMessage(worker_id_t from, const IncomingMessage& in,
                                     RRefLifecycle::LossCount losses_then) {
  // torch, which may read it all the same, asks nobody whose the RRef is.
  TORCH_CHECK(rrefs_.lifecycle().serve(static_cast<MessageType>(in.type()), in.payload(), from,
                                       losses_then),
              "the request is malformed: it names no RRef");
  context_.metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
  responder_.send(from, in.callId(), RRefLifecycle::ack());
}

void RequestServer::onRequest(worker_id_t from, std::shared_ptr<IncomingMessage> in) {
  if (serveIfQuick(from, *in)) return;
  Peer& peer = peers_[from];
  const RequestSource source{from, in->callId(), rrefs_.lifecycle().lossCount(), peer.order,
                             CallRecorder::get().now()};
  try {
    auto request = std::make_shared<InflightRequest>(source, peer.held, std::move(in));
    peer.requests.add(source.id, request);
    context_.workers.run([this, alive = context_.keepAlive(), request = std::move(request)] {
      if (const auto message = request->take()) serve(*message, request);
    });
  } catch (const std::exception& error) {
    // There is no memory or no thread for the task.
    responder_.fail(
        source.from, source.id,
        transport::resourceExhausted(context_.me() + " cannot run the request: " + error.what()));
  }
}

void RequestServer::onCancel(worker_id_t from, std::uint64_t id) {
  if (auto request = peers_[from].requests.cancel(id)) dropWaiting(std::move(request));
}

void RequestServer::onPeerLost(worker_id_t peer) {
  Peer& lost = peers_[peer];
  for (Request& request : lost.requests.cancelAll())
    dropWaiting(std::move(request));
  lost.order.clear();
}

void RequestServer::dropWaiting(Request request) {
  if (!mayBeDropped(request->type())) return;
  auto message = request->take();
  if (message == nullptr) return;  // it has begun
  context_.metrics.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  // A dropper reads its payload, which may take long; its bytes count until then.
  static_cast<void>(transport::thrownBy([&] {
    context_.droppers.run([this, alive = context_.keepAlive(), request = std::move(request),
                           message = std::move(message)]() mutable {
      client_.decliner().decline(request->source().from, message->payload());
      message.reset();
      request->forgetMessage();
    });
  }));
}

void RequestServer::onOwnRequest(std::uint64_t id, FuturePtr request, Clock::time_point deadline) {
  auto call = std::make_shared<CallContext>(deadline);
  {
    const std::lock_guard lock(own_mutex_);
    own_requests_.add(id, call);
  }
  context_.workers.run([this, alive = context_.keepAlive(), id, request = std::move(request),
                        call = std::move(call), arrived = CallRecorder::get().now()] {
    serveOwn({context_.rank, id, rrefs_.lifecycle().lossCount(), responder_.ownOrder(), arrived},
             request, *call);
  });
}

void RequestServer::onCancelOwn(std::uint64_t id) {
  const std::lock_guard lock(own_mutex_);
  own_requests_.cancel(id);
}

void RequestServer::serveOwn(const RequestSource& source, const FuturePtr& made,
                             const CallContext& call) {
  const CallScope scope(&call);
  const auto request = made->value().toCustomClass<Message>();
  if (call.isCancelled() && mayBeDropped(innermost(request->type(), request->payload()).type))
    return responder_.drop(source.from, request->payload());
  try {
    runner_.run({source}, [&] {
      made->wait();  // it is complete: the call's streams wait for the caller's
      return request;
    });
  } catch (const std::exception& error) {
    responder_.fail(source.from, source.id, error.what());
  }
}

void RequestServer::serve(IncomingMessage& in, const Request& request) {
  const CallScope scope(request.get());
  const RequestSource& source = request->source();
  try {
    const auto type = static_cast<MessageType>(in.type());
    const auto& payload = in.payload();
    // The caller was told that the call failed, and may have called again.
    const bool failed = rrefs_.lifecycle().isOfLostLife(source.from, source.losses_then) &&
                        !group_.lossOf(source.from) && !RRefLifecycle::isRRefMessage(type);
    if (failed) {
      logDebug("a request from before the loss of " + group_.describe(source.from) + " is not run");
    } else if (const auto why =
                   refusal(context_.options.request_policy, type, payload, source.from)) {
      responder_.refuseByPolicy(source.from, source.id, payload, *why);
    } else if (request->isCancelled() && mayBeDropped(innermost(type, payload).type)) {
      responder_.drop(source.from, payload);
    } else if (RRefLifecycle::isRRefMessage(type)) {
      serveRRefMessage(source.from, in, source.losses_then);
    } else {
      runRequest(in, request);
    }
  } catch (const std::exception& error) {
    responder_.fail(source.from, source.id, error.what());
  }
}

void RequestServer::runRequest(IncomingMessage& in, const Request& request) {
  const RequestSource& source = request->source();
  RunningRequest running{source};
  const auto type = static_cast<MessageType>(in.type());
  // Read before finish() takes the payload.
  const Innermost asked = innermost(type, in.payload());
  const auto fetched = isFetch(asked.type) ? readFetchedId(asked.payload) : std::nullopt;
  const bool distrusts = distrustsPeers(context_.options.request_policy);
  if (createsRRef(asked.type)) {
    running.created =
        rrefs_.lifecycle().onRemoteCall(asked.payload, source.from, source.losses_then);
    if (distrusts && !running.created) {
      return responder_.refuseByPolicy(source.from, source.id, in.payload(),
                                       "the RRef that it creates is not its own");
    }
  }
  {
    running.inflight = request;
    const PeerRequest checks(source.from, contexts_, distrusts, request->gradients());
    runner_.run(std::move(running), [&] { return in.finish(distrusts); });
  }
  if (fetched) rrefs_.onFetch(*fetched);
  // Its context of autograd may be younger than the clean-up after the loss.
  if (type == MessageType::FORWARD_AUTOGRAD_REQ && group_.lossOf(source.from))
    rrefs_.cleanUpAfter(source.from);
}

}  // namespace weft::rpc
