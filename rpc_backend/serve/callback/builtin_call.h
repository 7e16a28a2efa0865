// Calls of built-in operators (torch.add, …) without printing and parsing the operator's schema for
// each.
//
// torch sends such a call as the arguments, the schema as text and the name, pickled (ScriptCall).
// The sender prints the schema for each call; the receiver parses it and prints that of each
// overload to find the right one. Here both cache their result. The bytes on the wire are torch's
// own, so either end may do without this.
//
// Any thread.
#pragma once

#include <ATen/core/stack.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>

#include "rpc_backend/options/request_policy.h"
#include "transport/base/api.h"

namespace weft::rpc {

// The request for `op` on `arguments`, as ScriptCall::toMessage makes it. Throws c10::Error for an
// operator that is not aten's.
WEFT_API MessagePtr encodeBuiltin(const std::shared_ptr<torch::jit::Operator>& op,
                                  const torch::jit::Stack& arguments);

// The request for rpc.remote(), as ScriptRemoteCall::toMessage makes it: with the ids of the RRef
// that holds the result.
WEFT_API MessagePtr encodeRemoteBuiltin(const std::shared_ptr<torch::jit::Operator>& op,
                                        const torch::jit::Stack& arguments,
                                        const torch::distributed::rpc::RRefId& value,
                                        const torch::distributed::rpc::ForkId& fork);

// Whether the stack has a value for each argument. An operator takes as many off it without
// looking, and torch's senders fill in defaults.
WEFT_API bool hasItsArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Runs a SCRIPT_CALL that names a built-in operator which peers may run under `policy`, and returns
// its answer. Throws what the operator throws; it has run then, and must not run again. Null when
// nothing has run: for any other request, and for one that cannot be read or is refused, for which
// torch and script_service.h give the error.
WEFT_API MessagePtr serveBuiltin(const Message& request, RequestPolicy policy);

}  // namespace weft::rpc
