// How the answers to calls become values.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <exception>
#include <utility>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/trace/call_range.h"

namespace weft::rpc {

// Of a built-in operator or a TorchScript function. Distributed autograd attaches its functions to
// the value. Throws what torch does for an answer that it cannot read.
inline at::IValue valueOf(const JitFuture& answer) {
  const auto message = answer.constValue().toCustomClass<Message>();
  return torch::distributed::rpc::deserializeRespToIValue(*message);
}

// The answer to the call that `send` makes; throws its error. This thread waits, and reads the
// answer from the network itself. Without the GIL.
template <typename Send>
FuturePtr answerTo(Send&& send) {
  const ScopedInlineWaiter waiter;
  const CallRange range;
  const FuturePtr answer = send();
  WeftAgent::awaitAnswer(*answer);
  answer->waitAndThrow();
  return answer;
}

// A future of this type for what `read` makes of the answer, for what it throws, or for the
// answer's error. `read` runs on the thread that completes the answer, or on this one if it is
// complete, with the caller's thread-local state.
template <typename Read>
FuturePtr futureValue(const FuturePtr& answer, c10::TypePtr type, Read read) {
  auto value = answer->createInstance(std::move(type));
  answer->addCallback(
      at::wrapPropagateTLSState([value, read = std::move(read)](JitFuture& answered) {
        if (answered.hasError()) {
          value->setError(answered.exception_ptr());
          return;
        }
        try {
          value->markCompleted(read(answered), answered.storages());
        } catch (const std::exception&) {
          value->setErrorIfNeeded(std::current_exception());
        }
      }));
  return value;
}

}  // namespace weft::rpc
