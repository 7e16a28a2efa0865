// What peers may ask of this process. Decided from the message's type, and that of the
// message it wraps (autograd, profiling), before any deserialiser of torch sees a byte.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <optional>
#include <string>
#include <vector>

#include "rpc_backend/api.h"

namespace weft::rpc {

enum class RequestPolicy : std::uint8_t {
  kAny,         // PyTorch's behaviour: peers may run any Python function
  kRegistered,  // Python functions registered by name, TorchScript, built-in operators
  kScript,      // TorchScript and built-in operators: Python is never unpickled
};

// "any", "registered" or "script"; throws c10::Error otherwise.
WEFT_API RequestPolicy parseRequestPolicy(const std::string& name);
WEFT_API const char* toString(RequestPolicy policy) noexcept;

// The type of a message, or of the message that it wraps; the wrapper's own when it cannot be read.
torch::distributed::rpc::MessageType innermostType(torch::distributed::rpc::MessageType type,
                                                   const std::vector<char>& payload);

// Nothing when a message of this type and payload may be handled under `policy`, else one
// sentence that says why not. Requests and responses alike: a response
// that carries pickled Python is refused under kScript as well.
std::optional<std::string> refusal(RequestPolicy policy, torch::distributed::rpc::MessageType type,
                                   const std::vector<char>& payload);

}  // namespace weft::rpc
