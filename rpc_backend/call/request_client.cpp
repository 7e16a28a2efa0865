#include "rpc_backend/call/request_client.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "rpc_backend/call/call_kind.h"
#include "rpc_backend/call/call_range.h"
#include "rpc_backend/call/call_recorder.h"
#include "rpc_backend/call/called_function.h"
#include "rpc_backend/call/driven_wait.h"
#include "rpc_backend/call/rref_creation.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/log.h"
#include "transport/base/interruption.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

using torch::distributed::rpc::makeRPCError;
using torch::distributed::rpc::RPCErrorType;

namespace {

// Deadlines closer together than this expire together.
constexpr milliseconds kTimerGrain{2};
// Answers that the loop thread may complete: assembling them takes no longer than a wake-up.
constexpr std::size_t kSmallAnswer = std::size_t{64} << 10;

// torch's text for a timeout, which programs look for.
std::string timeoutText(milliseconds timeout, bool inherited) {
  std::string text = torch::distributed::rpc::kRpcTimeoutErrorStr;
  text.replace(text.find("{}"), 2, std::to_string(timeout.count()));  // the place-holder is {fmt}'s
  if (inherited) text += " (the time that was left of the call in which it was made)";
  return makeRPCError(text, RPCErrorType::TIMEOUT);
}

// Of a call that has waited: what is left of its timeout, 0 for none.
milliseconds leftOf(const PendingCall& call) {
  if (call.timeout.count() == 0) return call.timeout;
  return std::max(std::chrono::ceil<milliseconds>(call.deadline() - Clock::now()), milliseconds(1));
}

}  // namespace

FuturePtr RequestClient::newFuture() const {
  return c10::make_intrusive<JitFuture>(at::AnyClassType::get(), group_.devices());
}

FuturePtr RequestClient::acknowledged() const {
  auto future = newFuture();
  future->markCompleted(RRefLifecycle::ack());
  return future;
}

FuturePtr RequestClient::send(worker_id_t to, const MessagePtr& message, milliseconds timeout,
                              const DeviceMap& device_map, bool quick) {
  const RRefService::Outgoing rrefs = rrefs_.onSend(*message, to);
  if (rrefs.orphan && RRefLifecycle::isControl(message->type())) return acknowledged();
  std::uint64_t id = 0;
  const Innermost asked = innermost(message->type(), message->payload());
  const MessageType type = asked.type;
  const auto now = Clock::now();
  const CallTime time = isUsers(type) ? timeOfCall(timeout, now) : CallTime{timeout};
  PendingCall call;
  call.peer = to;
  call.type = type;
  call.timeout = time.timeout;
  call.inherited = time.inherited;
  call.started = now;
  call.quick = quick;
  auto why =
      rrefs.orphan ? rrefs.orphan : reasonNotToSend(*message, time.over, call, rrefs.carried);
  const milliseconds left = call.counted ? leftOf(call) : time.timeout;
  std::optional<RRefKey> fetched;
  if (waitsInTorch(type)) fetched = call.fetched = readFetchedId(asked.payload);
  if (createsRRef(type)) call.created = readCreatedIds(asked.payload);
  auto future = start(std::move(call), id);
  std::optional<CallRange> range;
  if (isUsers(type)) show(to, id, asked, *message, range);
  if (!why && fetched) why = completer_.whyNotCreated(*fetched);
  if (why) {
    rrefs_.lifecycle().undo(rrefs.carried);
    if (to == context_.rank && createsRRef(type) && markOwnRRef(asked.payload)) {
      if (const auto own = calls_.take(id, to)) completer_.failAtOnce(*own, *why);
    } else {
      onSendFailed(to, id, *why);
    }
    return future;
  }
  const auto delay = hooks_.delay ? hooks_.delay(message->type()) : milliseconds(0);
  if (delay.count() == 0) {
    transmit(to, id, message, left, device_map, rrefs.carried);
  } else {
    sender_.completeAfter(
        delay, [this, alive = context_.keepAlive(), to, id, message, left, device_map,
                carried = rrefs.carried] { transmit(to, id, message, left, device_map, carried); });
  }
  // torch would wait for this future at once, deaf to Ctrl-C.
  if (waitsInTorch(type)) awaitHere(to, *future);
  return future;
}

void RequestClient::show(worker_id_t to, std::uint64_t id, const Innermost& asked,
                         const Message& message, std::optional<CallRange>& range) const {
  if (CallRecorder& recorder = CallRecorder::get(); recorder.on())
    recorder.made(id, to, asked.type, asked.payload, message);
  if (CallRange::wanted())
    CallRange::begin(range, group_.directory().nameOf(to), functionOf(asked.type, asked.payload),
                     static_cast<std::int64_t>(bytesOf(message)));
}

void RequestClient::awaitHere(worker_id_t to, JitFuture& future) {
  if (to != context_.rank && threadIsPlain() && !future.completed()) {
    thread_local transport::AdaptiveSpin spin;
    const auto endpoint = sender_.endpoint();
    const auto wake = [endpoint, waiter = std::this_thread::get_id()](JitFuture&) {
      if (std::this_thread::get_id() != waiter) endpoint->wakeDriver(transport::Driver::kCaller);
    };
    future.addCallback(wake, /*uses_future=*/false);
    const auto completed = [&] { return future.completed(); };
    if (!driveInterruptibly(*endpoint, completed, spin)) transport::raiseInterrupt();
  }
  awaitInterruptibly(future);
}

std::optional<std::string> RequestClient::reasonNotToSend(const Message& message, bool over,
                                                          PendingCall& call,
                                                          const RRefLifecycle::Carried& carried) {
  if (over) {
    context_.metrics.calls_timed_out.fetch_add(1, std::memory_order_relaxed);
    return timeoutText(milliseconds(0), /*inherited=*/true);
  }
  if (hooks_.fault) {
    if (auto fault = hooks_.fault(message)) return fault;
  }
  const auto limit = context_.options.max_calls_in_flight;
  if (limit == 0 || call.peer == context_.rank || !isUsers(call.type)) return std::nullopt;
  const auto waited =
      calls_.waitForRoom(call.peer, static_cast<std::size_t>(limit), call.deadline());
  call.counted = waited == transport::Waited::kDone;
  if (call.counted) return std::nullopt;
  if (waited == transport::Waited::kInterrupted) {
    rrefs_.lifecycle().undo(carried);
    transport::raiseInterrupt();
  }
  return transport::resourceExhausted(
      context_.me() + " has " + std::to_string(limit) + " calls to " + group_.describe(call.peer) +
      " in flight, which is its max_calls_in_flight, and there was no room in the " +
      std::to_string(call.timeout.count()) +
      " ms of this one: wait for some before making more, or raise the limit");
}

FuturePtr RequestClient::start(PendingCall call, std::uint64_t& id) {
  call.future = newFuture();
  if (const CallContext* const outer = CallContext::current())
    call.outer_deadline = outer->deadline();
  Completion displaced;
  if (mayHaveWaiter(call.type)) {
    // Workers of this process answer its calls to itself.
    const bool own = call.peer == context_.rank;
    call.waiter = InlineWaiter::claim(displaced, own ? nullptr : sender_.endpoint());
  }
  if (displaced) context_.completers.run(std::move(displaced));
  const auto deadline = call.deadline();
  auto future = call.future;
  context_.metrics.client_calls.increment();
  context_.metrics.calls_sent.fetch_add(1, std::memory_order_relaxed);
  id = calls_.add(std::move(call));
  if (deadline != CallContext::kNever) armTimer(deadline);
  return future;
}

void RequestClient::transmit(worker_id_t to, std::uint64_t id, const MessagePtr& message,
                             milliseconds timeout, const DeviceMap& map,
                             const RRefLifecycle::Carried& carried) {
  bool interrupted = false;
  try {
    if (to == context_.rank) {
      auto copy = copyForSelf(*message, map, context_.name);
      copy->setId(static_cast<std::int64_t>(id));
      hooks_.serve_own(id, completedFuture(copy, group_.devices()), CallContext::after(timeout));
      return;
    }
    rrefs_.onTransmit(*message, to);
    const auto error = sender_.send(to, WireKind::kRequest, id, message, map,
                                    group_.directory().nameOf(to), timeout);
    if (!error) return;
    rrefs_.lifecycle().undo(carried);
    onSendFailed(to, id, error.text());
    // torch logs what sending a message of its own throws: there the next wait throws it.
    interrupted = error.code() == transport::ErrorCode::kInterrupted &&
                  !RRefLifecycle::isControl(message->type());
  } catch (...) {
    // As with TensorPipe, send() throws when a message cannot be encoded (a device without a map),
    // and nothing is left in the table.
    rrefs_.lifecycle().undo(carried);
    if (calls_.take(id, to)) context_.metrics.client_calls.decrement();
    throw;
  }
  if (interrupted) transport::raiseInterrupt();
}

FuturePtr RequestClient::callControl(worker_id_t to, ControlType type, const std::string& text,
                                     milliseconds timeout) {
  std::uint64_t id = 0;
  PendingCall call;
  call.peer = to;
  call.type = static_cast<MessageType>(type);
  call.timeout = timeout;
  call.started = Clock::now();
  auto future = start(std::move(call), id);
  const auto error = sender_.sendControl(to, WireKind::kControl, type, id, text, timeout);
  if (error) onSendFailed(to, id, error.text());
  return future;
}

void RequestClient::onAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in) {
  // Whoever has the answer may write to the arguments, which the callee's streams may still read.
  if (!group_.devices().empty() &&
      sender_.devices().whenReturned({from, WireKind::kRequest, in->callId()},
                                     [this, from, in] { onAnswer(from, in); }))
    return;
  auto call = calls_.take(in->callId(), from);
  if (!call) return;  // it timed out in the meantime
  const auto thrown = transport::thrownBy([&] { takeAnswer(from, in, *call); });
  // The call is in no table any more: nobody else would end it.
  if (thrown && call->future)
    completer_.fail(std::move(*call), transport::resourceExhausted(
                                          "the answer could not be taken (" + *thrown + ")"));
}

void RequestClient::takeAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                               PendingCall& call) {
  context_.metrics.addRoundTrip(kindOf(call.type), Clock::now() - call.started);
  CallRecorder::get().answered(call.id, in->bytes(),
                               in->type() == static_cast<int>(MessageType::EXCEPTION));
  Completion read =
      completer_.completion(call, [this, in, from, asked = CallCompleter::askedBy(call)](
                                      JitFuture& future) { readAnswer(from, *in, asked, future); });
  const bool here = call.quick || waitsInTorch(call.type);
  if (here && group_.devices().empty() && in->bytes() <= kSmallAnswer) {
    read();
    if (in->tensorCount() > 0) sender_.dropElsewhere(std::move(read));
  } else {
    completer_.complete(call, std::move(read));
  }
}

void RequestClient::readAnswer(worker_id_t from, IncomingMessage& in,
                               const CallCompleter::Asked& asked, JitFuture& future) {
  try {
    const auto streams = streamsFromPool(group_.devices());
    const c10::MultiStreamGuard guard(streams);
    const auto type = static_cast<MessageType>(in.type());
    if (const auto why = refusal(context_.options.request_policy, type, in.payload())) {
      const std::string name = group_.directory().nameOf(from);
      completer_.setError(future, asked, "the answer of worker '" + name + "' is refused: " + *why);
      return;
    }
    if (type == MessageType::EXCEPTION) {
      completer_.setError(future, asked, in.text());
      return;
    }
    rrefs_.lifecycle().onAnswerReceived(type, in.payload());
    auto message = in.finish(distrustsPeers(context_.options.request_policy));
    auto storages = message->getStorages();
    future.markCompleted(std::move(message), std::move(storages));
  } catch (const std::exception& error) {
    completer_.setError(future, asked, error.what());
  }
}

void RequestClient::onControlAck(worker_id_t from, const IncomingMessage& in) {
  auto call = calls_.take(in.callId(), from);
  if (!call) return;
  if (const std::string text = in.text(); !text.empty()) {
    completer_.fail(std::move(*call), text);
    return;
  }
  completer_.complete(*call, completer_.completion(*call, [](JitFuture& future) {
    future.markCompleted(c10::IValue());
  }));
}

void RequestClient::completeOwn(std::uint64_t id, const FuturePtr& made) {
  auto call = calls_.take(id, context_.rank);
  if (!call) return;
  context_.metrics.addRoundTrip(kindOf(call->type), Clock::now() - call->started);
  CallRecorder::get().answered(id, 0, made->hasError());
  auto settle = [this, made, asked = CallCompleter::askedBy(*call)](JitFuture& future) {
    const c10::MultiStreamGuard guard(streamsFromPool(group_.devices()));
    made->wait();  // it is complete: these streams wait for those that made the answer
    const auto answer = made->value().toCustomClass<Message>();
    if (answer->type() == MessageType::EXCEPTION) {
      const auto& text = answer->payload();
      completer_.setError(future, asked, {text.begin(), text.end()});
      return;
    }
    auto storages = answer->getStorages();
    future.markCompleted(answer, std::move(storages));
  };
  completer_.complete(*call, completer_.completion(*call, std::move(settle)));
}

void RequestClient::onSendFailed(worker_id_t to, std::uint64_t id, const std::string& reason) {
  if (auto call = calls_.take(id, to)) completer_.fail(std::move(*call), reason);
}

void RequestClient::onPeerLost(worker_id_t peer, const std::string& reason) {
  for (PendingCall& call : calls_.takeAllOf(peer))
    completer_.fail(std::move(call), reason);
}

void RequestClient::cancel(std::optional<PendingCall> call) {
  if (!call) return;
  // On the loop thread, which does not wait for room where this one would.
  sender_.endpoint()->runAfter(milliseconds(0), [this, parts = context_.parts, peer = call->peer,
                                                 type = call->type, id = call->id] {
    if (const auto alive = parts.lock()) giveUp(peer, type, id);
  });
  completer_.fail(std::move(*call), "the wait for the call was interrupted, so it was cancelled");
}

void RequestClient::close() {
  const std::string text =
      context_.me() + " is shutting down: RPC is no longer running on this node.";
  for (PendingCall& call : calls_.takeAll())
    completer_.fail(std::move(call), text);
}

void RequestClient::armTimer(Clock::time_point deadline) {
  {
    const std::lock_guard lock(timer_mutex_);
    if (timer_armed_ <= deadline) return;
    timer_armed_ = deadline;
  }
  const auto delay =
      std::chrono::duration_cast<milliseconds>(deadline - Clock::now()) + kTimerGrain;
  sender_.endpoint()->runAfter(std::max(delay, milliseconds(0)), [this, parts = context_.parts] {
    if (const auto alive = parts.lock()) expire();
  });
}

void RequestClient::giveUp(worker_id_t callee, MessageType type, std::uint64_t id) {
  if (!isUsers(type)) return;
  if (callee == context_.rank) return hooks_.cancel_own(id);
  const auto error = sender_.sendControl(callee, WireKind::kControl, ControlType::kCancel, id, {});
  if (error) logDebug("a call could not be taken back: " + error.text());
}

void RequestClient::expire() {
  {
    const std::lock_guard lock(timer_mutex_);
    timer_armed_ = Clock::time_point::max();
  }
  Clock::time_point next;
  for (PendingCall& call : calls_.takeExpired(Clock::now(), next)) {
    context_.metrics.calls_timed_out.fetch_add(1, std::memory_order_relaxed);
    giveUp(call.peer, call.type, call.id);
    const std::string text = timeoutText(call.timeout, call.inherited);
    completer_.fail(std::move(call), text);
  }
  if (next != Clock::time_point::max()) armTimer(next);
}

}  // namespace weft::rpc
