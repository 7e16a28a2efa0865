// WeftAgent: the requests that others (and this process itself) make here.
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/control.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/builtin_call.h"

namespace weft::rpc {

using torch::distributed::rpc::createExceptionResponse;
using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;

namespace {

// torch leaves the profiler's callback on the thread that ran a profiled request (2.11: the
// continuation forgets its handle), and the next profiled request there then records nothing.
// TensorPipe has the fault too; with many threads it shows seldom.
class ProfilerCallbacksGuard {
 public:
  ProfilerCallbacksGuard() : saved_(at::get_record_function_tls_()) {}
  ~ProfilerCallbacksGuard() { at::set_record_function_tls_(saved_); }
  ProfilerCallbacksGuard(const ProfilerCallbacksGuard&) = delete;
  ProfilerCallbacksGuard& operator=(const ProfilerCallbacksGuard&) = delete;

 private:
  const at::RecordFunctionTLS saved_;
};

c10::intrusive_ptr<WeftAgent::JitFuture> completed(const c10::intrusive_ptr<Message>& message) {
  auto future = c10::make_intrusive<WeftAgent::JitFuture>(at::AnyClassType::get());
  auto storages = message->getStorages();
  future->markCompleted(message, std::move(storages));
  return future;
}

}  // namespace

bool WeftAgent::runRequest(std::function<void()> task) {
  {
    const std::lock_guard lock(early_mutex_);
    if (!serving_) {
      early_requests_.push_back(std::move(task));
      return true;
    }
  }
  return workers_.run(std::move(task));
}

void WeftAgent::sendToSelf(std::uint64_t id, const c10::intrusive_ptr<Message>& message) {
  auto copy = copyForSelf(*message);
  copy->setId(static_cast<std::int64_t>(id));
  runRequest([self = shared_from_this(), id, copy] {
    self->serve(self->config_.rank, id, self->rrefs_.now(), [&] { return copy; });
  });
}

void WeftAgent::onRequest(worker_id_t from, const std::shared_ptr<IncomingMessage>& in) {
  {
    const std::lock_guard lock(inflight_mutex_);
    inflight_bytes_[from] += in->bytes();
  }
  runRequest([self = shared_from_this(), from, in, seen = rrefs_.now()] {
    self->runCounted(from, in, seen);
  });
}

// Whatever happens, the bytes are counted off again and the caller gets an answer.
void WeftAgent::runCounted(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                           RRefLifecycle::Seen seen) {
  try {
    const auto type = static_cast<MessageType>(in->type());
    if (const auto why = refusal(config_.options.request_policy, type, in->payload())) {
      refuseRequest(from, in->callId(), in->payload(), *why);
    } else if (!RRefLifecycle::isControl(type) || !serveRRefControl(from, *in, seen)) {
      serve(from, in->callId(), seen, [&] { return in->finish(); });
    }
  } catch (const std::exception& error) {
    respondFailure(from, in->callId(), error.what());
  }
  const std::lock_guard lock(inflight_mutex_);
  inflight_bytes_[from] -= in->bytes();
}

void WeftAgent::serve(worker_id_t from, std::uint64_t id, RRefLifecycle::Seen seen,
                      const std::function<c10::intrusive_ptr<Message>()>& take) {
  metrics_.server_calls.fetch_add(1, std::memory_order_relaxed);
  metrics_.calls_served.fetch_add(1, std::memory_order_relaxed);
  c10::intrusive_ptr<JitFuture> result;
  try {
    const auto streams = streamsFromPool(devices_);
    const c10::MultiStreamGuard guard(streams);
    const c10::intrusive_ptr<Message> request = take();
    std::optional<ProfilerCallbacksGuard> profiler;
    if (request->type() == MessageType::RUN_WITH_PROFILING_REQ) profiler.emplace();
    const c10::intrusive_ptr<Message> answer =
        serveBuiltin(*request, config_.options.request_policy);
    result = answer != nullptr ? completed(answer) : cb_->operator()(*request, streams);
  } catch (...) {
    result = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    result->setError(std::current_exception());
  }
  if (result->completed()) {
    metrics_.server_calls.fetch_sub(1, std::memory_order_relaxed);
    respond(from, id, seen, *result);
    return;
  }
  metrics_.server_async_calls.fetch_add(1, std::memory_order_relaxed);
  result->addCallback([self = shared_from_this(), from, id, seen](JitFuture& future) {
    self->metrics_.server_calls.fetch_sub(1, std::memory_order_relaxed);
    self->metrics_.server_async_calls.fetch_sub(1, std::memory_order_relaxed);
    self->respond(from, id, seen, future);
  });
}

void WeftAgent::respond(worker_id_t to, std::uint64_t id, RRefLifecycle::Seen seen,
                        JitFuture& result) {
  try {
    c10::intrusive_ptr<Message> message;
    if (result.hasError()) {
      message =
          createExceptionResponse(result.tryRetrieveErrorMessage(), static_cast<std::int64_t>(id));
    } else {
      message = result.value().toCustomClass<Message>();
      rrefs_.onAnswer(*message, to, seen);
    }
    if (rrefs_.isOfLostLife(to, seen)) return;  // its new life did not ask
    sendResponse(to, id, message);
  } catch (const std::exception& error) {
    // The result cannot be sent (a device without a map, say): the caller is told why.
    respondFailure(to, id, error.what());
  }
}

void WeftAgent::respondFailure(worker_id_t to, std::uint64_t id, const std::string& text) {
  try {
    sendResponse(to, id, createExceptionResponse(text, static_cast<std::int64_t>(id)));
  } catch (const std::exception& error) {
    logWarning(std::string("an answer could not be sent: ") + error.what());
  }
}

void WeftAgent::sendResponse(worker_id_t to, std::uint64_t id,
                             const c10::intrusive_ptr<Message>& message) {
  if (to == config_.rank) {
    completeSelf(id, copyForSelf(*message));
    return;
  }
  const std::string peer = directory_.nameOf(to);
  DeviceMap map;
  {
    const std::lock_guard lock(maps_mutex_);
    const auto found = reverse_maps_.find(peer);
    if (found != reverse_maps_.end()) map = found->second;
  }
  const RRefLifecycle::Carried carried = rrefs_.onSend(*message, to);
  try {
    const auto error = endpoint_->send(to, encoded(WireKind::kResponse, id, message, map, peer));
    if (!error) return;
    // The caller is gone, or we are: nobody is left to tell.
    logDebug("an answer was not sent: " + error.text());
  } catch (...) {
    rrefs_.undo(carried);
    throw;
  }
  rrefs_.undo(carried);
}

void WeftAgent::completeSelf(std::uint64_t id, const c10::intrusive_ptr<Message>& message) {
  auto call = pending_.take(id, config_.rank);
  if (!call) return;
  metrics_.round_trip.add(Clock::now() - call->started);
  complete(*call, [self = shared_from_this(), future = std::move(call->future), message] {
    self->finishCall([&] {
      if (message->type() == MessageType::EXCEPTION) {
        const auto& text = message->payload();
        future->setErrorIfNeeded(
            std::make_exception_ptr(std::runtime_error(std::string(text.begin(), text.end()))));
        return;
      }
      auto storages = message->getStorages();
      future->markCompleted(message, std::move(storages));
    });
  });
}

void WeftAgent::refuseRequest(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                              const std::string& why) {
  metrics_.requests_refused.fetch_add(1, std::memory_order_relaxed);
  const std::string text = me() + " refuses the request: " + why + ".";
  const auto response = createExceptionResponse(text, static_cast<std::int64_t>(id));
  const auto error =
      endpoint_->send(from, encode(WireKind::kResponse, id, response, {}, directory_.nameOf(from)));
  if (error) {
    logDebug("a refusal was not sent: " + error.text());
    return;
  }
  for (const auto& message : RRefLifecycle::declining(payload, from))
    send(getWorkerInfo(from), message, torch::distributed::rpc::kUnsetRpcTimeout, {});
}

void WeftAgent::onControl(worker_id_t from, const IncomingMessage& in) {
  std::string problem;
  switch (static_cast<ControlType>(in.type())) {
    case ControlType::kPing:
      break;
    case ControlType::kJoin: {
      const auto record = MemberRecord::fromText(in.text());
      if (!record || record->rank != from) {
        problem = "the join message of rank " + std::to_string(from) + " is malformed";
        break;
      }
      try {
        // Of a worker that was started again: where its new life listens, as it says itself.
        if (isStaticGroup()) endpoint_->setPeerAddress(from, record->address);
        admit(*record);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      break;
    }
    case ControlType::kLeave:
      directory_.remove(from);
      break;
    default:
      problem = me() + " does not know control message " + std::to_string(in.type());
  }
  const auto error =
      endpoint_->send(from, encodeControl(WireKind::kControlAck, in.type(), in.callId(), problem));
  if (error) logDebug("an acknowledgement was not sent: " + error.text());
}

}  // namespace weft::rpc
