// What peers may ask of this process. The type of the message, and of the message that it wraps
// (autograd, profiling), decide before any deserialiser of torch sees a byte.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace c10 {
struct FunctionSchema;
struct IValue;
}  // namespace c10

namespace weft::rpc {

enum class RequestPolicy : std::uint8_t {
  kAny,         // PyTorch's behaviour: peers may run any Python function
  kRegistered,  // Python functions registered by name, TorchScript, built-in operators
  kScript,      // TorchScript and built-in operators: Python is never unpickled
};

// "any", "registered" or "script"; throws c10::Error otherwise.
WEFT_API RequestPolicy parseRequestPolicy(const std::string& name);
WEFT_API const char* toString(RequestPolicy policy) noexcept;

// Under kAny a peer may run code here anyway.
constexpr bool distrustsPeers(RequestPolicy policy) noexcept {
  return policy != RequestPolicy::kAny;
}

// Why a message of this type and payload from `sender` must not be handled under `policy`, as one
// sentence; nothing when it may be. It applies to responses too: under kScript one that carries
// pickled Python is refused.
std::optional<std::string> refusal(RequestPolicy policy, MessageType type,
                                   const std::vector<char>& payload, worker_id_t sender);

// Whether an undefined tensor is in the value, at any depth. torch sends none as an argument;
// operators and compiled graphs expect none, and some operators read it all the same.
bool holdsUndefined(const c10::IValue& value);

// Why a peer must not run this built-in operator, as one sentence; nothing when it may. Under kAny
// it may run all, else those of PyTorch's own namespace `aten` that do nothing but compute, do not
// read or write files, and whose number of arguments is known.
// torch sends no others, but a hostile peer could name any operator that this process has loaded.
std::optional<std::string> refusal(RequestPolicy policy, const c10::FunctionSchema& schema);
// The same of a call with these values: dtypes, layouts and memory formats come as numbers, which
// torch believes.
std::optional<std::string> refusal(RequestPolicy policy, const c10::FunctionSchema& schema,
                                   const std::vector<c10::IValue>& values);

}  // namespace weft::rpc
