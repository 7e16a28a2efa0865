// What peers may ask of this process. Decided from the message's type, and that of the
// message it wraps (autograd, profiling), before any deserialiser of torch sees a byte.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/base/api.h"

namespace c10 {
struct FunctionSchema;
}

namespace weft::rpc {

enum class RequestPolicy : std::uint8_t {
  kAny,         // PyTorch's behaviour: peers may run any Python function
  kRegistered,  // Python functions registered by name, TorchScript, built-in operators
  kScript,      // TorchScript and built-in operators: Python is never unpickled
};

// "any", "registered" or "script"; throws c10::Error otherwise.
WEFT_API RequestPolicy parseRequestPolicy(const std::string& name);
WEFT_API const char* toString(RequestPolicy policy) noexcept;

// A message with what wraps it (autograd, profiling) taken off.
struct Innermost {
  torch::distributed::rpc::MessageType type;
  std::span<const char> payload;
  bool
      recognised;  // false: a wrapper in which no message could be found; the rest is the wrapper's
};
Innermost innermost(torch::distributed::rpc::MessageType type, std::span<const char> payload);

// Nothing when a message of this type and payload may be handled under `policy`, else one
// sentence that says why not. Requests and responses alike: a response
// that carries pickled Python is refused under kScript as well.
std::optional<std::string> refusal(RequestPolicy policy, torch::distributed::rpc::MessageType type,
                                   const std::vector<char>& payload);

// Nothing when a peer may have this built-in operator run, else one sentence that says why not.
// Under kAny all may be. Elsewhere those of PyTorch's own namespace `aten` but for what reads or
// writes files: torch sends no other, but a hostile peer could name any that this process has
// loaded.
std::optional<std::string> refusal(RequestPolicy policy, const c10::FunctionSchema& schema);

}  // namespace weft::rpc
