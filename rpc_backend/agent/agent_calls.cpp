// WeftAgent: the calls this process makes: sending, answers, timeouts, failures.
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/control.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using std::chrono::milliseconds;
using torch::distributed::rpc::kRpcTimeoutErrorStr;
using torch::distributed::rpc::kUnsetRpcTimeout;
using torch::distributed::rpc::makeRPCError;
using torch::distributed::rpc::MessageType;
using torch::distributed::rpc::RPCErrorType;

namespace {

// Deadlines closer together than this are looked at together.
constexpr milliseconds kTimerGrain{2};

// Answers that the loop thread may complete: assembling them takes no longer than waking another.
constexpr std::size_t kSmallAnswer = std::size_t{64} << 10;

// RRef.to_here(): the thread that called it waits for this very future, which nobody else sees, and
// deserialises the answer itself. So nothing of the user's hangs on it.
bool waitsInTorch(MessageType type) {
  return type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL;
}

// A collected RRef may send its own message from the thread that is about to wait for its call.
bool rpcSyncMakes(MessageType type) {
  return type == MessageType::SCRIPT_CALL || type == MessageType::PYTHON_CALL;
}

// What torch begins a text with that tells the kind of error (makeRPCError).
constexpr const char* kErrorPrefix = "RPCErr:";

// torch's own wording, which programs look for; its place-holder is {fmt}'s.
std::string timeoutText(milliseconds timeout) {
  std::string text = kRpcTimeoutErrorStr;
  return text.replace(text.find("{}"), 2, std::to_string(timeout.count()));
}

// A clock can count so far; beyond, as for "infinity", a person would not notice the difference.
milliseconds toTimeout(float seconds) {
  constexpr double kLongest = 1e9;
  const double bounded = seconds > 0 ? std::min<double>(seconds, kLongest) : 0;
  return milliseconds(static_cast<std::int64_t>(bounded * 1000));
}

std::exception_ptr runtimeError(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

// torch lets go of an RRef whose creation failed only when that is a "timeout" (2.11, the error
// handlers of UserRRef): after any other failure its to_here() waits for an owner that knows
// nothing of it, and rpc.shutdown waits 100 s. So that is what a failed rpc.remote() is, whatever
// the cause.
std::exception_ptr callError(std::uint16_t type, const std::string& text) {
  const auto message = static_cast<MessageType>(type);
  const bool creates_rref =
      message == MessageType::PYTHON_REMOTE_CALL || message == MessageType::SCRIPT_REMOTE_CALL;
  if (!creates_rref || text.starts_with(kErrorPrefix)) return runtimeError(text);
  logWarning("rpc.remote() failed, its RRef has no value: " + text);
  return runtimeError(makeRPCError(text, RPCErrorType::TIMEOUT));
}

}  // namespace

c10::intrusive_ptr<WeftAgent::JitFuture> WeftAgent::startCall(worker_id_t to, std::uint16_t type,
                                                              milliseconds timeout,
                                                              std::uint64_t& id) {
  PendingCall call;
  call.future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), devices_);
  call.peer = to;
  call.type = type;
  call.timeout = timeout;
  call.started = Clock::now();
  Completion displaced;
  if (rpcSyncMakes(static_cast<MessageType>(type))) call.waiter = InlineWaiter::claim(displaced);
  if (displaced) completers_.run(std::move(displaced));
  const auto deadline = call.deadline();
  auto future = call.future;
  metrics_.client_calls.increment();
  metrics_.calls_sent.fetch_add(1, std::memory_order_relaxed);
  id = pending_.add(std::move(call));
  if (timeout.count() != 0) armTimer(deadline);
  return future;
}

c10::intrusive_ptr<WeftAgent::JitFuture> WeftAgent::send(const WorkerInfo& to,
                                                         c10::intrusive_ptr<Message> message,
                                                         const float timeout_seconds,
                                                         const DeviceMap& device_map) {
  TORCH_CHECK(message->isRequest(), "WeftAgent::send(..) is only for sending requests.");
  if (RRefLifecycle::isControl(message->type()) &&
      nothingLeftToSay(to.id_, static_cast<std::uint16_t>(message->type()))) {
    return asIfAcknowledged();
  }
  if (!rpcAgentRunning_.load()) {
    throw std::runtime_error(c10::str("Node ", config_.rank, " tried to send() a message of type ",
                                      message->type(),
                                      " but RPC is no longer running on this node."));
  }
  const worker_id_t id = directory_.byId(to.id_).id_;
  if (faults_) {
    if (const auto failure = faults_->failure(*message)) {
      auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), devices_);
      future->setError(runtimeError(*failure));
      return future;
    }
  }
  const auto fails = [&](const std::string& text) {
    auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), devices_);
    future->setError(runtimeError(text));
    return future;
  };
  if (const auto orphan = rrefs_.orphanIn(*message, id)) {
    return RRefLifecycle::isControl(message->type()) ? asIfAcknowledged()
                                                     : fails(orphanText(*orphan, id));
  }
  const RRefLifecycle::Carried carried = rrefs_.onSend(*message, id);
  if (const auto orphan = rrefs_.orphanAmong(carried);
      orphan && !lossOf(static_cast<worker_id_t>(orphan->owner))) {
    rrefs_.undo(carried);
    return fails(orphanText(orphan->ids.value, static_cast<worker_id_t>(orphan->owner)));
  }
  const milliseconds timeout =
      timeout_seconds == kUnsetRpcTimeout ? getRpcTimeout() : toTimeout(timeout_seconds);
  const DeviceMap map = device_map.empty() ? getDeviceMap(to) : device_map;
  std::uint64_t call = 0;
  const auto type = innermost(message->type(), message->payload()).type;
  auto future = startCall(id, static_cast<std::uint16_t>(type), timeout, call);
  const milliseconds hold = faults_ ? faults_->delay(message->type()) : milliseconds(0);
  if (hold.count() == 0) {
    transmit(id, call, message, map, carried);
  } else {
    endpoint_->runAfter(hold, [self = shared_from_this(), id, call, message, map, carried] {
      self->completers_.run([=] { self->transmit(id, call, message, map, carried); });
    });
  }
  for (int copies = faults_ ? faults_->repeats(message->type()) : 0; copies > 0; --copies) {
    std::uint64_t repeat = 0;
    startCall(id, static_cast<std::uint16_t>(message->type()), timeout, repeat)
        ->addCallback([](JitFuture& answer) {
          if (answer.hasError())
            logWarning("a repeated message: " + answer.tryRetrieveErrorMessage());
        });
    transmit(id, repeat, message, map, {});
  }
  return future;
}

void WeftAgent::transmit(worker_id_t to, std::uint64_t id,
                         const c10::intrusive_ptr<Message>& message, const DeviceMap& device_map,
                         const RRefLifecycle::Carried& carried) {
  try {
    if (to == config_.rank) {
      sendToSelf(id, message);
      return;
    }
    auto error = endpoint_->send(
        to, encoded(WireKind::kRequest, id, message, device_map, directory_.nameOf(to)));
    if (!error) return;
    rrefs_.undo(carried);
    if (auto call = pending_.take(id)) failCall(std::move(*call), error.text());
  } catch (...) {
    // What cannot be encoded (a device without a map) is the caller's to know at once, as
    // with TensorPipe: send() throws, and nothing is left in the table.
    rrefs_.undo(carried);
    if (pending_.take(id)) metrics_.client_calls.decrement();
    throw;
  }
}

void WeftAgent::finishCall(const std::function<void()>& complete) {
  // The future's callbacks may make further calls, so the count goes down after them. They may
  // throw, too: torch's own do when an RRef's owner is lost.
  try {
    complete();
  } catch (const std::exception& error) {
    logInfo(std::string("a callback of a call threw: ") + error.what());
  }
  metrics_.client_calls.decrement();
}

void WeftAgent::failCall(PendingCall call, const std::string& text) {
  metrics_.calls_failed.fetch_add(1, std::memory_order_relaxed);
  Completion fail = [self = shared_from_this(), peer = call.peer, type = call.type,
                     future = std::move(call.future), text] {
    const bool lost = self->lossOf(peer).has_value();
    self->finishCall([&] {
      if (RRefLifecycle::isControl(static_cast<MessageType>(type)) &&
          self->nothingLeftToSay(peer, type)) {
        future->markCompleted(RRefLifecycle::ack());
        return;
      }
      // A lost owner's reason is kept: the ledger settles what torch waits for from it.
      future->setErrorIfNeeded(lost ? runtimeError(text) : callError(type, text));
    });
    if (lost) self->cleanUpAfter(peer);
  };
  // Callbacks are user code: never on the loop thread, nor inside the caller's send().
  if (!complete(call, fail)) fail();
}

bool WeftAgent::complete(const PendingCall& call, Completion completion) {
  return call.waiter.give(completion) || completers_.run(std::move(completion));
}

void WeftAgent::armTimer(Clock::time_point deadline) {
  {
    const std::lock_guard lock(timer_mutex_);
    if (timer_armed_ <= deadline) return;
    timer_armed_ = deadline;
  }
  const auto delay =
      std::chrono::duration_cast<milliseconds>(deadline - Clock::now()) + kTimerGrain;
  endpoint_->runAfter(std::max(delay, milliseconds(0)), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->expireCalls();
  });
}

void WeftAgent::expireCalls() {
  {
    const std::lock_guard lock(timer_mutex_);
    timer_armed_ = Clock::time_point::max();
  }
  Clock::time_point next;
  for (PendingCall& call : pending_.takeExpired(Clock::now(), next)) {
    metrics_.calls_timed_out.fetch_add(1, std::memory_order_relaxed);
    const std::string text = makeRPCError(timeoutText(call.timeout), RPCErrorType::TIMEOUT);
    failCall(std::move(call), text);
  }
  if (next != Clock::time_point::max()) armTimer(next);
}

void WeftAgent::onResponse(worker_id_t from, const std::shared_ptr<IncomingMessage>& in) {
  auto call = pending_.take(in->callId(), from);
  if (!call) return;  // it timed out in the meantime
  metrics_.round_trip.add(Clock::now() - call->started);
  // Moved: this thread must not be the last to hold it.
  Completion completion = [self = shared_from_this(), in, from, future = std::move(call->future),
                           asked = call->type] {
    self->finishCall([&] {
      try {
        const auto streams = streamsFromPool(self->devices_);
        const c10::MultiStreamGuard guard(streams);
        const auto type = static_cast<MessageType>(in->type());
        if (const auto why = refusal(self->config_.options.request_policy, type, in->payload())) {
          const std::string text =
              "the answer of worker '" + self->directory_.nameOf(from) + "' is refused: " + *why;
          future->setError(callError(asked, text));
          return;
        }
        if (type == MessageType::EXCEPTION) {
          future->setError(callError(asked, in->text()));
          return;
        }
        self->rrefs_.onAnswerReceived(type, in->payload());
        auto message = in->finish();
        auto storages = message->getStorages();
        future->markCompleted(std::move(message), std::move(storages));
      } catch (const std::exception& error) {
        future->setErrorIfNeeded(runtimeError(error.what()));
      }
    });
  };
  if (waitsInTorch(static_cast<MessageType>(call->type)) && devices_.empty() &&
      in->bytes() <= kSmallAnswer) {
    completion();
    if (in->tensorCount() > 0) dropElsewhere(std::move(completion));
  } else {
    complete(*call, std::move(completion));
  }
}

c10::intrusive_ptr<WeftAgent::JitFuture> WeftAgent::sendControl(worker_id_t to, std::uint16_t type,
                                                                const std::string& text,
                                                                milliseconds timeout) {
  std::uint64_t id = 0;
  auto future = startCall(to, type, timeout, id);
  auto error = endpoint_->send(to, encodeControl(WireKind::kControl, type, id, text), timeout);
  if (error) {
    if (auto call = pending_.take(id)) failCall(std::move(*call), error.text());
  }
  return future;
}

void WeftAgent::onControlAck(worker_id_t from, const IncomingMessage& in) {
  auto call = pending_.take(in.callId(), from);
  if (!call) return;
  if (const std::string text = in.text(); !text.empty()) {
    failCall(std::move(*call), text);
    return;
  }
  complete(*call, [self = shared_from_this(), future = std::move(call->future)] {
    self->finishCall([&] { future->markCompleted(c10::IValue()); });
  });
}

}  // namespace weft::rpc
