#include "rpc_backend/request_policy.h"

#include <c10/util/Exception.h>

#include "rpc_backend/wrapped_type.h"

namespace weft::rpc {

using torch::distributed::rpc::MessageType;

namespace {

constexpr int kMaxWraps = 4;  // torch wraps twice: profiling around autograd

bool carriesPython(MessageType type) {
  switch (type) {
    case MessageType::PYTHON_CALL:
    case MessageType::PYTHON_REMOTE_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL:
    case MessageType::PYTHON_RET:
    case MessageType::PYTHON_RREF_FETCH_RET:
      return true;
    default:
      return false;
  }
}

bool wraps(MessageType type) {
  switch (type) {
    case MessageType::FORWARD_AUTOGRAD_REQ:
    case MessageType::FORWARD_AUTOGRAD_RESP:
    case MessageType::RUN_WITH_PROFILING_REQ:
    case MessageType::RUN_WITH_PROFILING_RESP:
      return true;
    default:
      return false;
  }
}

}  // namespace

RequestPolicy parseRequestPolicy(const std::string& name) {
  if (name == "any") return RequestPolicy::kAny;
  if (name == "registered") return RequestPolicy::kRegistered;
  if (name == "script") return RequestPolicy::kScript;
  TORCH_CHECK(false, "request_policy must be \"any\", \"registered\" or \"script\", got \"", name,
              "\"");
}

const char* toString(RequestPolicy policy) noexcept {
  switch (policy) {
    case RequestPolicy::kAny:
      return "any";
    case RequestPolicy::kRegistered:
      return "registered";
    case RequestPolicy::kScript:
      return "script";
  }
  return "?";
}

MessageType innermostType(MessageType type, const std::vector<char>& payload) {
  std::span<const char> bytes(payload);
  for (int depth = 0; wraps(type) && depth < kMaxWraps; ++depth) {
    const auto inner = readWrappedType(bytes);
    if (!inner) break;
    type = static_cast<MessageType>(inner->type);
    bytes = inner->inner_payload;
  }
  return type;
}

std::optional<std::string> refusal(RequestPolicy policy, MessageType type,
                                   const std::vector<char>& payload) {
  // Under `registered` the restricted unpickler of weft/_registered.py decides on names.
  if (policy != RequestPolicy::kScript) return std::nullopt;
  std::span<const char> bytes(payload);
  for (int depth = 0; wraps(type); ++depth) {
    const auto inner = readWrappedType(bytes);
    if (depth == kMaxWraps || !inner) {
      return "its wrapped message could not be recognised, and the request policy here is "
             "\"script\"";
    }
    type = static_cast<MessageType>(inner->type);
    bytes = inner->inner_payload;
  }
  if (!carriesPython(type)) return std::nullopt;
  return "it carries pickled Python, and the request policy here is \"script\": only TorchScript "
         "functions and built-in operators are served";
}

}  // namespace weft::rpc
