// How the answers to calls become values.
#pragma once

#include <torch/csrc/distributed/rpc/utils.h>

#include <exception>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// Of a built-in operator or a TorchScript function. Distributed autograd attaches its functions to
// the value. Throws what torch does for an answer that it cannot read.
inline at::IValue valueOf(const JitFuture& answer) {
  const auto message = answer.constValue().toCustomClass<Message>();
  return torch::distributed::rpc::deserializeRespToIValue(*message);
}

// Completes `value` with what `read` makes of the answer, with what it throws, or with the answer's
// error.
template <typename Read>
void settle(JitFuture& value, JitFuture& answer, const Read& read) {
  if (answer.hasError()) {
    value.setError(answer.exception_ptr());
    return;
  }
  try {
    value.markCompleted(read(answer), answer.storages());
  } catch (const std::exception&) {
    value.setErrorIfNeeded(std::current_exception());
  }
}

}  // namespace weft::rpc
