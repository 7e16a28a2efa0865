// Calls of built-in operators (torch.add and its like), without writing and parsing the operator's
// schema anew for each.
//
// torch sends such a call as the arguments, the schema as text and the name, pickled (ScriptCall).
// The sender writes the text each time, the receiver parses it and then writes that of each
// overload to find the one that is meant. Here both keep what they found: an operator's text, and
// the operator of a text. What goes over the
// wire is torch's own, to the byte, so either end may be without this.
//
// Any thread.
#pragma once

#include <ATen/core/stack.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>

#include "rpc_backend/core/request_policy.h"
#include "transport/base/api.h"

namespace weft::rpc {

// The request for `op` on `arguments`, as ScriptCall::toMessage makes it. Throws c10::Error for an
// operator that is not aten's.
WEFT_API c10::intrusive_ptr<torch::distributed::rpc::Message> encodeBuiltin(
    const std::shared_ptr<torch::jit::Operator>& op, const torch::jit::Stack& arguments);

// As ScriptRemoteCall::toMessage makes it: the same, and the ids of the RRef that is to hold the
// result.
WEFT_API c10::intrusive_ptr<torch::distributed::rpc::Message> encodeRemoteBuiltin(
    const std::shared_ptr<torch::jit::Operator>& op, const torch::jit::Stack& arguments,
    const torch::distributed::rpc::RRefId& value, const torch::distributed::rpc::ForkId& fork);

// Runs a SCRIPT_CALL that names a built-in operator which peers may run under `policy`, and returns
// its answer. Throws what the operator throws: it has run then, and must not run again. Null when
// nothing has run: for any other request, and for one that cannot be read or is refused, which
// torch and script_service.h put into words.
WEFT_API c10::intrusive_ptr<torch::distributed::rpc::Message> serveBuiltin(
    const torch::distributed::rpc::Message& request, RequestPolicy policy);

}  // namespace weft::rpc
