#include "rpc_backend/call/request_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "rpc_backend/call/driven_wait.h"
#include "rpc_backend/call/fetch_in_background.h"
#include "rpc_backend/call/rref_creation.h"
#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/call_streams.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/options/request_policy.h"
#include "rpc_backend/torch_private/autograd_contexts.h"
#include "rpc_backend/trace/call_range.h"
#include "rpc_backend/trace/call_recorder.h"
#include "rpc_backend/trace/called_function.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

namespace {

// How much of its timeout a call has left after it waited for room; 0: it has no timeout.
milliseconds leftOf(const PendingCall& call) {
  if (call.timeout.count() == 0) return call.timeout;
  return std::max(std::chrono::ceil<milliseconds>(call.deadline() - Clock::now()), milliseconds(1));
}

// The table's entry for a call to `peer` that begins at `now`; start() adds its future and waiter.
PendingCall describeCall(worker_id_t peer, const Innermost& asked, const CallTime& time,
                         Clock::time_point now) {
  PendingCall call;
  call.peer = peer;
  call.type = asked.type;
  call.timeout = time.timeout;
  call.inherited = time.inherited;
  call.started = now;
  if (isFetch(asked.type)) {
    call.fetched = readFetchedId(asked.payload);
    if (!FetchInBackground::active()) call.awaited_by = std::this_thread::get_id();
  }
  if (createsRRef(asked.type)) call.created = readCreatedIds(asked.payload);
  return call;
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
  const RRefService::Outgoing rrefs = rrefs_.beforeSend(*message, to);
  if (rrefs.refusal && RRefLifecycle::isRRefMessage(message->type())) return acknowledged();
  const Innermost asked = innermost(message->type(), message->payload());
  std::uint64_t id = 0;
  FuturePtr future;
  std::optional<std::string> why = rrefs.refusal;
  milliseconds left{}, delay{};
  bool has_room = false, awaited = false;
  std::optional<CallRange> range;
  try {
    const auto now = Clock::now();
    const CallTime time = isUserCall(asked.type) ? timeOfCall(timeout, now) : CallTime{timeout};
    PendingCall call = describeCall(to, asked, time, now);
    call.quick = quick;
    if (distrustsPeers(context_.options.request_policy))
      call.context = contextIdOf(message->type(), message->payload());
    if (!why) why = reasonNotToSend(*message, time.over, call);
    has_room = call.counted;
    awaited = call.isAwaited();
    left = has_room ? leftOf(call) : time.timeout;
    const std::optional<RRefKey> fetched = call.fetched;
    future = start(std::move(call), id);
    if (asked.type == MessageType::BACKWARD_AUTOGRAD_REQ) keepContext(*message, *future);
    if (isUserCall(asked.type)) show(to, id, asked, *message, range);
    if (!why && fetched) why = completer_.whyNotCreated(*fetched);
    // close() may have failed all calls before; what goes to others meets a closed endpoint.
    if (!why && to == context_.rank && context_.closed()) why = closedText();
    if (hooks_.delay) delay = hooks_.delay(message->type());
  } catch (...) {
    if (has_room && id == 0) calls_.giveRoomBack(to);
    forget(to, id, rrefs.carried);
    throw;
  }
  if (why) {
    rrefs_.lifecycle().undo(rrefs.carried);
    failUnsent(to, id, asked, *why);
    return future;
  }
  if (delay.count() == 0) {
    transmit(to, id, message, left, device_map, rrefs.carried);
  } else {
    sender_.runOnCompleterAfter(
        delay, [this, alive = context_.keepAlive(), to, id, message, left, device_map,
                carried = rrefs.carried] { transmit(to, id, message, left, device_map, carried); });
  }
  if (awaited) awaitFetch(to, *future);
  return future;
}

void RequestClient::forget(worker_id_t to, std::uint64_t id,
                           const RRefLifecycle::Carried& carried) {
  rrefs_.lifecycle().undo(carried);
  if (calls_.take(id, to)) context_.metrics.client_calls.decrement();
}

// torch notes the end of the call in its context by a bare pointer, and a peer may end the context
// before.
void RequestClient::keepContext(const Message& gradients, JitFuture& future) {
  future.addCallback([context = autograd_contexts::keepAlive(gradients)](JitFuture&) {},
                     /*uses_future=*/false);
}

void RequestClient::failUnsent(worker_id_t to, std::uint64_t id, const Innermost& asked,
                               const std::string& why) {
  if (to == context_.rank && createsRRef(asked.type) && markOwnRRef(asked.payload)) {
    if (const auto own = calls_.take(id, to)) completer_.failAtOnce(*own, why);
  } else {
    onSendFailed(to, id, why);
  }
}

// torch would wait for this future as soon as send() returned, and not notice Ctrl-C meanwhile.
void RequestClient::awaitFetch(worker_id_t to, JitFuture& future) {
  if (to != context_.rank) driveUntilCompleted(sender_.endpoint(), future);
  awaitInterruptibly(future);
}

void RequestClient::show(worker_id_t to, std::uint64_t id, const Innermost& asked,
                         const Message& message, std::optional<CallRange>& range) const {
  if (CallRecorder& recorder = CallRecorder::get(); recorder.on())
    recorder.made(id, to, asked.type, asked.payload, message);
  if (CallRange::wanted())
    CallRange::begin(range, group_.directory().nameOf(to), functionOf(asked.type, asked.payload),
                     static_cast<std::int64_t>(bytesOf(message)));
}

std::optional<std::string> RequestClient::reasonNotToSend(const Message& message, bool over,
                                                          PendingCall& call) {
  if (over) {
    context_.metrics.calls_timed_out.fetch_add(1, std::memory_order_relaxed);
    return timeoutText(milliseconds(0), /*inherited=*/true);
  }
  if (hooks_.fault) {
    if (auto fault = hooks_.fault(message)) return fault;
  }
  const auto limit = context_.options.max_calls_in_flight;
  if (limit == 0 || call.peer == context_.rank || !isUserCall(call.type)) return std::nullopt;
  const auto waited =
      calls_.waitForRoom(call.peer, static_cast<std::size_t>(limit), call.deadline());
  call.counted = waited == transport::Waited::kDone;
  if (call.counted) return std::nullopt;
  if (waited == transport::Waited::kInterrupted) transport::raiseInterrupt();
  return transport::resourceExhausted(
      context_.me() + " has " + std::to_string(limit) + " calls to " + group_.describe(call.peer) +
      " in flight, which is its max_calls_in_flight, and none of them ended within the " +
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
  if (displaced) completer_.complete({}, std::move(displaced));
  const auto deadline = call.deadline();
  auto future = call.future;
  // Counted before: another thread may take it at once.
  context_.metrics.client_calls.increment();
  try {
    id = calls_.add(std::move(call));
  } catch (...) {
    context_.metrics.client_calls.decrement();
    throw;
  }
  context_.metrics.calls_sent.fetch_add(1, std::memory_order_relaxed);
  if (deadline != CallContext::kNever) canceller_.watch(deadline);
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
    constexpr milliseconds kLongest = MessageSender::kRoomWait;
    const auto room_wait = timeout.count() == 0 ? kLongest : std::min(timeout, kLongest);
    const auto error = sender_.send(to, WireKind::kRequest, id, message, map,
                                    group_.directory().nameOf(to), timeout, room_wait);
    if (!error) return;
    rrefs_.lifecycle().undo(carried);
    onSendFailed(to, id, error.text());
    // torch only logs what is thrown while it sends a message of its own. For those the next wait
    // throws.
    interrupted = error.code() == transport::ErrorCode::kInterrupted &&
                  !RRefLifecycle::isRRefMessage(message->type());
  } catch (...) {
    // As with TensorPipe, send() throws when a message cannot be encoded (a device without a map).
    forget(to, id, carried);
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

void RequestClient::onSendFailed(worker_id_t to, std::uint64_t id, const std::string& reason) {
  if (auto call = calls_.take(id, to)) completer_.fail(std::move(*call), reason);
}

void RequestClient::onPeerLost(worker_id_t peer, const std::string& reason) {
  for (PendingCall& call : calls_.takeAllOf(peer))
    completer_.fail(std::move(call), reason);
}

std::string RequestClient::closedText() const {
  return context_.me() + " is shutting down: RPC is no longer running on this node.";
}

void RequestClient::close() {
  for (PendingCall& call : calls_.takeAll())
    completer_.fail(std::move(call), closedText());
}

}  // namespace weft::rpc
