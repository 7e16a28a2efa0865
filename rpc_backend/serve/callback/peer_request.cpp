#include "rpc_backend/serve/callback/peer_request.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/rpc/python_remote_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/options/request_policy.h"
#include "rpc_backend/serve/callback/peer_contexts.h"
#include "rpc_backend/serve/callback/script_service.h"
#include "rpc_backend/torch_private/autograd_contexts.h"

namespace weft::rpc {

using torch::autograd::profiler::ProfilerState;
using torch::distributed::autograd::CleanupAutogradContextReq;
using torch::distributed::autograd::PropagateGradientsReq;
using torch::distributed::autograd::RpcWithAutograd;
using torch::distributed::autograd::RpcWithProfilingReq;
using torch::distributed::rpc::GloballyUniqueId;
using torch::distributed::rpc::PythonRemoteCall;
using torch::distributed::rpc::ScriptCall;
using torch::distributed::rpc::ScriptRemoteCall;

namespace {

constexpr std::int64_t kNoContext = -1;
thread_local const PeerRequest* current = nullptr;

// Only Weft's own quick calls may have an undefined tensor.
void checkValues(const ScriptCall& call) {
  if (call.hasQualifiedName() && call.qualifiedName().qualifiedName().starts_with(kQuick)) return;
  TORCH_CHECK(std::ranges::none_of(call.stack(), holdsUndefined),
              "the request is refused: one of its tensors is undefined");
}

// With another state torch begins no profile, and its guard aborts the process when it ends it.
bool isProfile(ProfilerState state) {
  return state > ProfilerState::Disabled && state < ProfilerState::NUM_PROFILER_STATES;
}

}  // namespace

std::optional<worker_id_t> PeerRequest::sender() noexcept {
  return current == nullptr ? std::nullopt : std::optional(current->from_);
}

PeerRequest::PeerRequest(worker_id_t from, PeerContexts& contexts, bool distrusts,
                         std::shared_ptr<void>& gradients)
    : from_(from), contexts_(contexts), distrusts_(distrusts), gradients_(gradients) {
  current = this;
}

PeerRequest::~PeerRequest() { current = nullptr; }

std::unique_ptr<PeerRequest::Command> PeerRequest::checked(std::unique_ptr<Command> command,
                                                           MessageType type) {
  const PeerRequest* const request = std::exchange(current, nullptr);
  if (request == nullptr) return command;
  if (request->distrusts_) request->check(*command, type);
  if (type != MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ) return command;
  const auto context = static_cast<CleanupAutogradContextReq&>(*command).getContextId();
  if (request->mayEnd(context)) return command;
  // torch acknowledges the end of a context that it does not have.
  return std::make_unique<CleanupAutogradContextReq>(kNoContext);
}

bool PeerRequest::mayEnd(std::int64_t context) const {
  if (contexts_.beganHere(context)) return false;
  return !distrusts_ || contexts_.mayEnd(from_, context);
}

void PeerRequest::check(Command& command, MessageType type) const {
  switch (type) {
    case MessageType::SCRIPT_CALL:
      return checkValues(static_cast<ScriptCall&>(command));
    case MessageType::SCRIPT_REMOTE_CALL: {
      const auto& call = static_cast<ScriptRemoteCall&>(command);
      checkValues(call);
      return checkCreated(call.retRRefId(), call.retForkId());
    }
    case MessageType::PYTHON_REMOTE_CALL: {
      const auto& call = static_cast<PythonRemoteCall&>(command);
      return checkCreated(GloballyUniqueId::fromIValue(call.retRRefId()),
                          GloballyUniqueId::fromIValue(call.retForkId()));
    }
    case MessageType::FORWARD_AUTOGRAD_REQ: {
      auto& call = static_cast<RpcWithAutograd&>(command);
      checkContext(call.autogradMetadata().autogradContextId);
      // torch profiles a call around autograd; the other way it would leave its callbacks.
      TORCH_CHECK(call.wrappedMessageType() != MessageType::RUN_WITH_PROFILING_REQ,
                  "the request is refused: it profiles a call inside of autograd's message");
      return checkWrapped(call.wrappedRpc(), call.wrappedMessageType());
    }
    case MessageType::BACKWARD_AUTOGRAD_REQ: {
      const auto of = static_cast<PropagateGradientsReq&>(command).getAutogradMetadata();
      gradients_ = contexts_.takeGradients(of.autogradContextId, of.autogradMessageId);
      // torch would write the second ones where its engine reads the first ones.
      TORCH_CHECK(gradients_ != nullptr,
                  "the request is refused: gradients of the same call are being taken");
      return;
    }
    case MessageType::RUN_WITH_PROFILING_REQ: {
      auto& call = static_cast<RpcWithProfilingReq&>(command);
      TORCH_CHECK(isProfile(call.getProfilingConfig().state),
                  "the request is refused: it names no state of the profiler");
      return checkWrapped(call.wrappedRpc(), call.wrappedMessageType());
    }
    default:
      break;
  }
}

// torch wraps the calls that users make. Messages about RRefs would pass by RRefTable.
void PeerRequest::checkWrapped(Command& command, MessageType type) const {
  TORCH_CHECK(isUserCall(type) || type == MessageType::FORWARD_AUTOGRAD_REQ ||
                  type == MessageType::RUN_WITH_PROFILING_REQ,
              "the request is refused: it wraps a message that is not a user's call");
  check(command, type);
}

// A context of this worker's that torch would begin again would never end, and the gradients that
// the peer owes it would be waited for.
void PeerRequest::checkContext(std::int64_t context) const {
  TORCH_CHECK(!contexts_.beganHere(context) || autograd_contexts::isHere(context),
              "the request is refused: the context of distributed autograd that it names is over, "
              "or was never begun");
  contexts_.onUsed(from_, context);
}

void PeerRequest::checkCreated(const GloballyUniqueId& value, const GloballyUniqueId& fork) const {
  TORCH_CHECK(value.createdOn_ == from_ && fork.createdOn_ == from_,
              "the request is refused: the RRef that it creates is not its own");
}

}  // namespace weft::rpc
