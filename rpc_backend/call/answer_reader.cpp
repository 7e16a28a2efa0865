#include "rpc_backend/call/answer_reader.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <exception>
#include <thread>
#include <utility>

#include "rpc_backend/call/rref_creation.h"
#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/call_streams.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/options/request_policy.h"
#include "rpc_backend/trace/call_recorder.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

namespace {

// The largest answer that the loop thread may complete: to assemble it takes no longer than to wake
// another thread.
constexpr std::size_t kSmallAnswer = std::size_t{64} << 10;

// Whether the call's future has no callback of the user's. That of a fetch for which send() waits
// is seen by nobody before; torch's own callback of a deletion counts it.
bool noUserCodeFollows(const PendingCall& call) {
  return call.quick || call.isAwaited() || call.type == MessageType::RREF_USER_DELETE;
}

// Throws what torch's callback would throw after it has read the answer; then callbacks behind that
// one never run. A profile in an answer is not read twice: it may hold a graph of autograd.
void readAsTorch(const Message& answer) {
  if (answer.type() == MessageType::REMOTE_RET) {
    torch::distributed::rpc::RemoteRet::fromMessage(answer);
  } else if (answer.type() == MessageType::FORWARD_AUTOGRAD_RESP) {
    torch::distributed::autograd::RpcWithAutograd::fromMessage(answer);
  }
}

}  // namespace

void AnswerReader::onAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in) {
  // Who gets the answer may write to the arguments, which the callee's streams may still read. So
  // the answer waits until the callee has returned them.
  if (!group_.devices().empty() &&
      sender_.devices().whenReturned({from, WireKind::kRequest, in->callId()},
                                     [this, from, in] { onAnswer(from, in); }))
    return;
  auto call = calls_.take(in->callId(), from);
  if (!call) return decliner_.declineLater(from, in);  // it timed out in the meantime
  const auto thrown = transport::thrownBy([&] { takeAnswer(from, in, *call); });
  if (!thrown || !call->future) return;
  // The call is no longer in the table, so nobody else would end it.
  completer_.fail(std::move(*call),
                  transport::resourceExhausted("the answer could not be taken (" + *thrown + ")"));
  decliner_.declineLater(from, in);
}

void AnswerReader::takeAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                              PendingCall& call) {
  context_.metrics.addRoundTrip(kindOf(call.type), Clock::now() - call.started);
  CallRecorder::get().answered(call.id, in->bytes(),
                               in->type() == static_cast<int>(MessageType::EXCEPTION));
  Completion read =
      completer_.completion(call, [this, in, from, asked = CallCompleter::askedBy(call)](
                                      JitFuture& future) { readAnswer(from, in, asked, future); });
  if (noUserCodeFollows(call) && group_.devices().empty() && in->bytes() <= kSmallAnswer) {
    read();
    // A thread that waits for the answer still has the future, so this is not the last owner.
    const bool has_owner = call.awaited_by == std::this_thread::get_id();
    if (in->tensorCount() > 0 && !has_owner) context_.dropElsewhere(std::move(read));
  } else {
    completer_.complete(call.waiter, std::move(read));
  }
}

std::optional<std::string> AnswerReader::faultOf(worker_id_t from, const IncomingMessage& in,
                                                 const CallCompleter::Asked& asked) const {
  const RequestPolicy policy = context_.options.request_policy;
  const auto type = static_cast<MessageType>(in.type());
  if (const auto why = refusal(policy, type, in.payload(), from)) return "is refused: " + *why;
  if (type == MessageType::EXCEPTION) return std::nullopt;
  if (distrustsPeers(policy)) {
    const auto context = contextIdOf(type, in.payload());
    if (context && context != asked.context)
      return "is refused: it names a context of distributed autograd that the call is not part of";
  }
  if (createsRRef(asked.type) && !confirmsCreation(type, in.payload(), asked.created))
    return "does not confirm that it created the value";
  return std::nullopt;
}

void AnswerReader::readAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in,
                              const CallCompleter::Asked& asked, JitFuture& future) {
  try {
    const auto streams = streamsFromPool(group_.devices());
    const c10::MultiStreamGuard guard(streams);
    const auto type = static_cast<MessageType>(in->type());
    if (const auto fault = faultOf(from, *in, asked)) {
      decliner_.declineLater(from, in);
      const std::string name = group_.directory().nameOf(from);
      completer_.setError(future, asked, "the answer of worker '" + name + "' " + *fault);
      return;
    }
    if (type == MessageType::EXCEPTION) {
      completer_.setError(future, asked, in->text());
      return;
    }
    MessagePtr message;
    try {
      message = in->finish(distrustsPeers(context_.options.request_policy));
    } catch (...) {
      decliner_.declineLater(from, in);
      throw;
    }
    if (createsRRef(asked.type)) readAsTorch(*message);
    rrefs_.lifecycle().onAnswerReceived(type, message->payload());
    auto storages = message->getStorages();
    future.markCompleted(std::move(message), std::move(storages));
  } catch (const std::exception& error) {
    completer_.setError(future, asked, error.what());
  }
}

void AnswerReader::onControlAck(worker_id_t from, const IncomingMessage& in) {
  auto call = calls_.take(in.callId(), from);
  if (!call) return;
  if (const std::string text = in.text(); !text.empty()) {
    completer_.fail(std::move(*call), text);
    return;
  }
  completer_.complete(call->waiter, completer_.completion(*call, [](JitFuture& future) {
    future.markCompleted(c10::IValue());
  }));
}

void AnswerReader::completeOwn(std::uint64_t id, const FuturePtr& made) {
  auto call = calls_.take(id, context_.rank);
  if (!call) return;
  context_.metrics.addRoundTrip(kindOf(call->type), Clock::now() - call->started);
  CallRecorder::get().answered(id, 0, made->hasError());
  completer_.complete(
      call->waiter,
      completer_.completion(*call, [this, made, asked = CallCompleter::askedBy(*call)](
                                       JitFuture& future) { takeOwn(*made, asked, future); }));
}

void AnswerReader::takeOwn(JitFuture& made, const CallCompleter::Asked& asked,
                           JitFuture& future) try {
  const c10::MultiStreamGuard guard(streamsFromPool(group_.devices()));
  made.wait();  // it is complete; this makes these streams wait for those that made the answer
  const auto answer = made.value().toCustomClass<Message>();
  if (answer->type() == MessageType::EXCEPTION) {
    const auto& text = answer->payload();
    completer_.setError(future, asked, {text.begin(), text.end()});
    return;
  }
  auto storages = answer->getStorages();
  future.markCompleted(answer, std::move(storages));
} catch (const std::exception& error) {  // torch knows no storage of some layouts
  completer_.setError(future, asked, error.what());
}

}  // namespace weft::rpc
