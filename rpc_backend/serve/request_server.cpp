#include "rpc_backend/serve/request_server.h"

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>

#include <optional>

#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/builtin_call.h"
#include "rpc_backend/serve/error_text.h"
#include "rpc_backend/serve/quick_call.h"
#include "rpc_backend/trace/call_range.h"
#include "rpc_backend/trace/called_function.h"

namespace weft::rpc {

using torch::distributed::rpc::createExceptionResponse;

namespace {

// torch leaves the profiler's callback on the thread that ran a profiled request (2.11: the
// continuation forgets its handle), and the next profiled request there then records nothing.
class ProfilerCallbacksGuard {
 public:
  ProfilerCallbacksGuard() : saved_(at::get_record_function_tls_()) {}
  ~ProfilerCallbacksGuard() { at::set_record_function_tls_(saved_); }
  ProfilerCallbacksGuard(const ProfilerCallbacksGuard&) = delete;
  ProfilerCallbacksGuard& operator=(const ProfilerCallbacksGuard&) = delete;

 private:
  const at::RecordFunctionTLS saved_;
};

// What a request takes beside its bytes, roughly, while it waits for a thread: many small ones take
// more memory than they have bytes.
constexpr std::uint64_t kRequestCost = 1024;

// Calls that nobody but their caller waits for. What makes an RRef's value runs in any case: others
// may wait for the value. What keeps tables right does, too.
bool mayBeDropped(MessageType type) {
  switch (type) {
    case MessageType::SCRIPT_CALL:
    case MessageType::PYTHON_CALL:
    case MessageType::SCRIPT_RREF_FETCH_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL:
      return true;
    default:
      return false;
  }
}

// Of a request for an RRef's value.
std::optional<RRefKey> fetchedBy(MessageType type, std::span<const char> payload) {
  const Innermost asked = innermost(type, payload);
  const bool fetches = asked.type == MessageType::SCRIPT_RREF_FETCH_CALL ||
                       asked.type == MessageType::PYTHON_RREF_FETCH_CALL;
  return fetches ? readFetchedId(asked.payload) : std::nullopt;
}

MessagePtr failure(const std::string& text, std::uint64_t id) {
  return createExceptionResponse(withoutStack(text), static_cast<std::int64_t>(id));
}

}  // namespace

struct RequestServer::Asker {
  worker_id_t from;
  std::uint64_t id;
  RRefLifecycle::Seen seen;  // which life of that worker asks
  CallOrder& order;
  std::int64_t arrived;                       // CallRecorder::now()
  CallRecorder::Entry record = std::nullopt;  // once it runs
};

// A request that waits or runs here: counts its bytes, however that ends.
class RequestServer::InFlight : public CallContext {
 public:
  InFlight(const Asker& asker, std::atomic<std::uint64_t>& held,
           std::shared_ptr<IncomingMessage> message)
      : CallContext(message->deadline()),
        asker_(asker),
        type_(static_cast<MessageType>(message->type())),
        message_(std::move(message)),
        held_(held),
        bytes_(message_->bytes() + kRequestCost) {
    held_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~InFlight() { held_.fetch_sub(bytes_, std::memory_order_relaxed); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  const Asker& asker() const noexcept { return asker_; }
  MessageType type() const noexcept { return type_; }
  // For who comes first, a worker or the loop thread that drops it; null for the other.
  std::shared_ptr<IncomingMessage> take() {
    return taken_.exchange(true, std::memory_order_relaxed) ? nullptr : std::move(message_);
  }
  // Who has taken the message has dropped it. The rest waits for a worker all the same.
  void forgetMessage() {
    held_.fetch_sub(std::exchange(bytes_, kRequestCost) - kRequestCost, std::memory_order_relaxed);
  }

 private:
  const Asker asker_;
  const MessageType type_;
  std::atomic<bool> taken_{false};
  std::shared_ptr<IncomingMessage> message_;
  std::atomic<std::uint64_t>& held_;
  std::uint64_t bytes_;
};

bool RequestServer::hasRoom(std::uint64_t held, std::uint64_t bytes) const {
  const std::uint64_t limit = context_.options.max_inflight_bytes;
  return bytes <= limit && held <= limit - bytes;
}

bool RequestServer::admits(worker_id_t from, const WireHeader& head, std::uint64_t bytes) {
  bytes += kRequestCost;
  const std::uint64_t held = peers_[from].held.load(std::memory_order_relaxed);
  if (hasRoom(held, bytes)) return true;
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
  // A payload that is not in the header has not been read, and its RRefs stay unknown.
  const auto* payload = reinterpret_cast<const char*>(head.payload.data());
  refuse(from, head.call_id, {payload, head.payload.size()}, why);
}

void RequestServer::refuse(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                           const std::string& why) {
  context_.metrics.requests_refused.fetch_add(1, std::memory_order_relaxed);
  const auto response = createExceptionResponse(
      context_.me() + " refuses the request: " + why + ".", static_cast<std::int64_t>(id));
  const auto error =
      sender_.send(from, WireKind::kResponse, id, response, {}, group_.directory().nameOf(from));
  if (error) {
    logDebug("a refusal was not sent: " + error.text());
    return;
  }
  decliner_.decline(from, payload);
}

bool RequestServer::servesHere(worker_id_t from, IncomingMessage& in) {
  if (!group_.devices().empty() || !looksQuick(in) || CallRecorder::get().on() ||
      CallRange::wanted()) {
    return false;
  }
  const RequestPolicy policy = context_.options.request_policy;
  try {
    const auto type = static_cast<MessageType>(in.type());
    if (const auto why = refusal(policy, type, in.payload())) {
      refused_by_policy_.fetch_add(1, std::memory_order_relaxed);
      refuse(from, in.callId(), {}, *why);
    } else {
      const MessagePtr answer = runQuick(*in.finish(distrustsPeers(policy)));
      context_.metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
      sendResponse(from, in.callId(), answer);
    }
  } catch (const std::exception& error) {
    respondFailure(from, in.callId(), error.what());
  }
  return true;
}

void RequestServer::onRequest(worker_id_t from, std::shared_ptr<IncomingMessage> in) {
  if (servesHere(from, *in)) return;
  Peer& peer = peers_[from];
  const Asker asker{from, in->callId(), rrefs_.lifecycle().now(), peer.order,
                    CallRecorder::get().now()};
  try {
    auto call = std::make_shared<InFlight>(asker, peer.held, std::move(in));
    peer.asked.add(asker.id, call);
    context_.workers.run([this, alive = context_.keepAlive(), call = std::move(call)] {
      if (const auto message = call->take()) serve(call->asker(), *message, *call);
    });
  } catch (const std::exception& error) {
    // No memory for the task, or no thread for it.
    respondFailure(
        asker.from, asker.id,
        transport::resourceExhausted(context_.me() + " cannot run the request: " + error.what()));
  }
}

void RequestServer::onCancel(worker_id_t from, std::uint64_t id) {
  if (const auto call = peers_[from].asked.cancel(id)) dropWaiting(call);
}

void RequestServer::onPeerLost(worker_id_t peer) {
  Peer& lost = peers_[peer];
  for (const auto& call : lost.asked.cancelAll())
    dropWaiting(call);
  lost.order.clear();
}

void RequestServer::dropWaiting(const std::shared_ptr<CallContext>& context) {
  auto call = std::static_pointer_cast<InFlight>(context);
  if (!mayBeDropped(call->type())) return;
  auto message = call->take();
  if (message == nullptr) return;  // it has begun
  context_.metrics.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  // A dropper reads it, which may take long; its bytes count until then.
  static_cast<void>(transport::thrownBy([&] {
    context_.droppers.run([this, alive = context_.keepAlive(), call = std::move(call),
                           message = std::move(message)]() mutable {
      decliner_.decline(call->asker().from, message->payload());
      message.reset();
      call->forgetMessage();
    });
  }));
}

void RequestServer::onOwnRequest(std::uint64_t id, FuturePtr request, Clock::time_point deadline) {
  auto call = std::make_shared<CallContext>(deadline);
  {
    const std::lock_guard lock(own_mutex_);
    own_.add(id, call);
  }
  context_.workers.run([this, alive = context_.keepAlive(), id, request = std::move(request),
                        call = std::move(call), arrived = CallRecorder::get().now()] {
    serveOwn({context_.rank, id, rrefs_.lifecycle().now(), own_order_, arrived}, request, *call);
  });
}

void RequestServer::onCancelOwn(std::uint64_t id) {
  const std::lock_guard lock(own_mutex_);
  own_.cancel(id);
}

void RequestServer::serveOwn(const Asker& asker, const FuturePtr& made, const CallContext& call) {
  const CallScope scope(&call);
  const auto request = made->value().toCustomClass<Message>();
  if (call.isCancelled() && mayBeDropped(innermost(request->type(), request->payload()).type)) {
    drop(asker, request->payload());
  } else {
    runCallback(asker, [&] {
      made->wait();  // it is complete: the call's streams wait for the caller's
      return request;
    });
  }
}

void RequestServer::drop(const Asker& asker, std::span<const char> payload) {
  context_.metrics.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  decliner_.decline(asker.from, payload);
}

void RequestServer::serve(const Asker& asker, IncomingMessage& in, const CallContext& call) {
  const CallScope scope(&call);
  try {
    const auto type = static_cast<MessageType>(in.type());
    const auto& payload = in.payload();
    // Its caller has heard that it failed, and may have called anew.
    const bool failed = rrefs_.lifecycle().isOfLostLife(asker.from, asker.seen) &&
                        !group_.lossOf(asker.from) && !RRefLifecycle::isControl(type);
    if (failed) {
      logDebug("a request of before the loss of " + group_.describe(asker.from) + " is not run");
    } else if (const auto why = refusal(context_.options.request_policy, type, payload)) {
      refused_by_policy_.fetch_add(1, std::memory_order_relaxed);
      refuse(asker.from, asker.id, payload, *why);
    } else if (call.isCancelled() && mayBeDropped(innermost(type, payload).type)) {
      drop(asker, payload);
    } else if (RRefLifecycle::isControl(type) &&
               rrefs_.lifecycle().serve(type, payload, asker.from, asker.seen)) {
      context_.metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
      sendResponse(asker.from, asker.id, RRefLifecycle::ack());
    } else {
      // Read before finish() takes the payload.
      const auto fetched = fetchedBy(type, payload);
      runCallback(asker,
                  [&] { return in.finish(distrustsPeers(context_.options.request_policy)); });
      if (fetched) rrefs_.onFetch(*fetched);
    }
  } catch (const std::exception& error) {
    respondFailure(asker.from, asker.id, error.what());
  }
}

void RequestServer::runCallback(Asker asker, const std::function<MessagePtr()>& take) {
  AgentMetrics& metrics = context_.metrics;
  metrics.server_calls.fetch_add(1, std::memory_order_relaxed);
  metrics.calls_served.fetch_add(1, std::memory_order_relaxed);
  FuturePtr result;
  const auto streams = streamsFromPool(group_.devices());
  const c10::MultiStreamGuard guard(streams);
  try {
    const MessagePtr request = take();
    std::optional<at::RecordFunction> range;
    show(asker, *request, range);
    asker.order.follow();
    std::optional<ProfilerCallbacksGuard> profiler;
    if (request->type() == MessageType::RUN_WITH_PROFILING_REQ) profiler.emplace();
    const MessagePtr answer = serveBuiltin(*request, context_.options.request_policy);
    result = answer != nullptr ? completedFuture(answer, {}) : (*callback_)(*request, streams);
  } catch (...) {
    result = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    result->setError(std::current_exception());
  }
  // A result with devices goes from a callback, whose streams wait for those of the result.
  if (result->completed() && result->devices().empty()) {
    metrics.server_calls.fetch_sub(1, std::memory_order_relaxed);
    respond(asker, *result, streams);
    return;
  }
  metrics.server_async_calls.fetch_add(1, std::memory_order_relaxed);
  result->addCallback([this, alive = context_.keepAlive(), asker, streams](JitFuture& future) {
    context_.metrics.server_calls.fetch_sub(1, std::memory_order_relaxed);
    context_.metrics.server_async_calls.fetch_sub(1, std::memory_order_relaxed);
    respond(asker, future, streams);
  });
}

void RequestServer::show(Asker& asker, const Message& request,
                         std::optional<at::RecordFunction>& range) const {
  CallRecorder& recorder = CallRecorder::get();
  asker.record = recorder.serves(asker.id, asker.from, request, asker.arrived);
  if (!CallRange::wanted()) return;
  const Innermost asked = innermost(request.type(), request.payload());
  constexpr std::int64_t kNsPerUs = 1000;
  const auto queued = asker.arrived == 0 ? 0 : (recorder.now() - asker.arrived) / kNsPerUs;
  CallRange::begin(range, context_.name, functionOf(asked.type, asked.payload),
                   static_cast<std::int64_t>(bytesOf(request)), queued);
}

void RequestServer::respond(const Asker& asker, JitFuture& result,
                            const std::vector<c10::Stream>& streams) {
  const auto& [to, id, seen, order, arrived, record] = asker;
  CallRecorder::get().served(record, result.hasError());
  try {
    order.follow();  // these are other streams: what an RRef holds may have been changed in place
    order.add(streams);
    MessagePtr message;
    if (result.hasError()) {
      message = failure(result.tryRetrieveErrorMessage(), id);
    } else {
      message = result.value().toCustomClass<Message>();
      if (message->type() == MessageType::EXCEPTION)
        message = failure({message->payload().begin(), message->payload().end()}, id);
      rrefs_.lifecycle().onAnswer(*message, to, seen);
    }
    // The new life of a worker did not ask.
    if (!rrefs_.lifecycle().isOfLostLife(to, seen)) sendResponse(to, id, message);
  } catch (const std::exception& error) {
    // The result cannot be sent (a device without a map, say): the caller is told why.
    respondFailure(to, id, error.what());
  }
}

void RequestServer::respondFailure(worker_id_t to, std::uint64_t id, const std::string& text) {
  try {
    sendResponse(to, id, failure(text, id));
  } catch (const std::exception& error) {
    logWarning(std::string("an answer could not be sent: ") + error.what());
  }
}

void RequestServer::sendResponse(worker_id_t to, std::uint64_t id, const MessagePtr& message) {
  if (to == context_.rank) {
    const DeviceMap back = group_.answerMap(context_.name);
    const auto copy = copyForSelf(*message, back, context_.name);
    own_order_.add(currentStreams(group_.devices()));  // which may read what the next call changes
    client_.answers().completeOwn(id, completedFuture(copy, group_.devices()));
    return;
  }
  const std::string peer = group_.directory().nameOf(to);
  const DeviceMap map = group_.answerMap(peer);
  RRefLifecycle& rrefs = rrefs_.lifecycle();
  const RRefLifecycle::Carried carried = rrefs.onSend(*message, to);
  try {
    const auto error = sender_.send(to, WireKind::kResponse, id, message, map, peer);
    if (!error) return;
    // The caller is gone, or this worker ends: nobody is left to tell.
    logDebug("an answer was not sent: " + error.text());
  } catch (...) {
    rrefs.undo(carried);
    throw;
  }
  rrefs.undo(carried);
}

}  // namespace weft::rpc
