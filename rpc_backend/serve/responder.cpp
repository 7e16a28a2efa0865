#include "rpc_backend/serve/responder.h"

#include <string_view>

#include "rpc_backend/core/call_streams.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/error_text.h"
#include "rpc_backend/trace/call_recorder.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

using torch::distributed::rpc::createExceptionResponse;

namespace {

// What torch says of a graph of distributed autograd that it does not have here.
bool missesGraph(std::string_view text) {
  return text.find("Could not find autograd context with id: ") != std::string_view::npos ||
         text.find("Could not find send function for autograd message") != std::string_view::npos;
}

}  // namespace

MessagePtr Responder::failure(const std::string& text, std::uint64_t id) const {
  std::string said = withoutStack(text);
  if (missesGraph(said)) said += lostMakers();
  return createExceptionResponse(said, static_cast<std::int64_t>(id));
}

std::string Responder::lostMakers() const {
  std::string said;
  for (const auto& [maker, reason] : group_.losses().all())
    said += "\n" + context_.me() + " had lost " + group_.describe(maker) +
            ", and released its autograd contexts: " + reason;
  return said;
}

void Responder::refuse(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                       const std::string& why) {
  context_.metrics.requests_refused.fetch_add(1, std::memory_order_relaxed);
  if (const auto ids = readCreatedIds(payload)) {
    static_cast<void>(transport::thrownBy([&] {
      context_.completers.run([this, alive = context_.keepAlive(), from, value = ids->value, why] {
        rrefs_.lifecycle().onNotCreated(value, from, why);
      });
    }));
  }
  const auto response = createExceptionResponse(
      context_.me() + " refuses the request: " + why + ".", static_cast<std::int64_t>(id));
  const auto error =
      sender_.send(from, WireKind::kResponse, id, response, {}, group_.directory().nameOf(from));
  if (error) {
    logDebug("a refusal was not sent: " + error.text());
    return;
  }
  client_.decliner().decline(from, payload);
}

void Responder::refuseByPolicy(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                               const std::string& why) {
  context_.metrics.requests_refused_by_policy.fetch_add(1, std::memory_order_relaxed);
  refuse(from, id, payload, why);
}

void Responder::drop(worker_id_t from, std::span<const char> payload) {
  context_.metrics.requests_dropped.fetch_add(1, std::memory_order_relaxed);
  client_.decliner().decline(from, payload);
}

void Responder::respond(const RunningRequest& running, JitFuture& result,
                        const std::vector<c10::Stream>& streams) {
  const auto& [to, id, losses_then, order, arrived] = running.source;
  CallRecorder::get().served(running.record, result.hasError());
  // With the answer the peer may bring the next ones.
  if (running.inflight != nullptr) running.inflight->gradients().reset();
  try {
    // These are other streams than the request's, which may have changed an RRef's value in place.
    order.follow();
    order.add(streams);
    MessagePtr message;
    if (result.hasError()) {
      message = failure(result.tryRetrieveErrorMessage(), id);
    } else {
      message = result.value().toCustomClass<Message>();
      if (message->type() == MessageType::EXCEPTION)
        message = failure({message->payload().begin(), message->payload().end()}, id);
    }
    rrefs_.lifecycle().beforeAnswer(*message, to, losses_then, running.created);
    // A new life of the worker did not ask.
    if (!rrefs_.lifecycle().isOfLostLife(to, losses_then)) send(to, id, message);
  } catch (const std::exception& error) {
    // The result cannot be sent (a device without a map, say), so the caller is told why.
    fail(to, id, error.what());
  }
}

void Responder::fail(worker_id_t to, std::uint64_t id, const std::string& text) {
  try {
    send(to, id, failure(text, id));
  } catch (const std::exception& error) {
    logWarning(std::string("an answer could not be sent: ") + error.what());
  }
}

void Responder::send(worker_id_t to, std::uint64_t id, const MessagePtr& message) {
  RRefLifecycle& rrefs = rrefs_.lifecycle();
  const RRefLifecycle::Carried carried = rrefs.beforeSend(*message, to);
  if (to == context_.rank) {
    const DeviceMap back = group_.answerMap(context_.name);
    const auto copy = copyForSelf(*message, back, context_.name);
    // The streams of the copies may still read what the next call changes.
    own_order_.add(currentStreams(group_.devices()));
    client_.answers().completeOwn(id, completedFuture(copy, group_.devices()));
    return;
  }
  const std::string peer = group_.directory().nameOf(to);
  const DeviceMap map = group_.answerMap(peer);
  transport::Error error;
  try {
    error = sender_.send(to, WireKind::kResponse, id, message, map, peer);
  } catch (...) {
    rrefs.undo(carried);
    throw;
  }
  if (!error) return;
  logDebug("an answer was not sent: " + error.text());
  rrefs.undo(carried);
  // Else the caller is gone, or this worker ends: nobody is left to tell.
  const bool too_large = error.code() == transport::ErrorCode::kLimitExceeded;
  if (too_large && message->type() != MessageType::EXCEPTION) fail(to, id, error.text());
}

}  // namespace weft::rpc
