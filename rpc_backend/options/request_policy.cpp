#include "rpc_backend/options/request_policy.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "rpc_backend/core/innermost.h"
#include "rpc_backend/wire/pickle_scan.h"

namespace weft::rpc {

namespace {

constexpr std::array kNames{"any", "registered", "script"};  // as RequestPolicy counts

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

// Why torch's unpickler of TorchScript must not read the message; nothing when it may. It reads
// nothing but what begins so.
std::optional<std::string> faultIn(const Innermost& message, worker_id_t sender) {
  if (message.type == MessageType::PYTHON_CALL || message.type == MessageType::PYTHON_RET)
    return std::nullopt;
  const std::string_view text(message.payload.data(), message.payload.size());
  return text.starts_with("\x80\x02") ? faultOf(message.payload, sender) : std::nullopt;
}

// Reads others' gradients, or reads and sets the random generator, which the schema does not tell.
constexpr std::array kUsesState{"aten::get_gradients", "aten::initial_seed", "aten::seed"};

bool isWaitedFor(const c10::Argument& argument) {
  const c10::TypeKind kind = argument.type()->kind();
  return kind == c10::TypeKind::RRefType || kind == c10::TypeKind::FutureType ||
         kind == c10::TypeKind::AwaitType;
}

bool isOfTensors(const c10::Argument& argument) {
  return argument.type()->annotation_str().find("Tensor") != std::string::npos;
}

// Whether the operator makes its results of its arguments, or changes those: it neither waits,
// prints, seeds nor runs a backward. Most that do are of TorchScript's interpreter alone, and have
// no result.
bool computes(const c10::FunctionSchema& schema) {
  if (std::ranges::count(kUsesState, schema.name()) > 0) return false;
  const auto& arguments = schema.arguments();
  if (std::ranges::any_of(arguments, isWaitedFor)) return false;
  if (!schema.returns().empty()) return true;
  return c10::Dispatcher::singleton().findOp(schema.operator_name()).has_value() &&
         std::ranges::any_of(arguments, isOfTensors);
}

// How many values the enum has for which an argument's number stands; nothing: for none.
std::optional<std::int64_t> enumSize(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return static_cast<std::int64_t>(c10::ScalarType::Undefined);
    case c10::TypeKind::LayoutType:
      return static_cast<std::int64_t>(c10::Layout::NumOptions);
    case c10::TypeKind::MemoryFormatType:
      return static_cast<std::int64_t>(c10::MemoryFormat::NumOptions);
    case c10::TypeKind::IntType:  // as of aten::to.prim_dtype
      if (argument.name() != "dtype") return std::nullopt;
      return static_cast<std::int64_t>(c10::ScalarType::Undefined);
    default:
      return std::nullopt;
  }
}

std::string thePolicyHere(RequestPolicy policy) {
  return "the request policy here is \"" + std::string(toString(policy)) + "\"";
}

}  // namespace

RequestPolicy parseRequestPolicy(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  TORCH_CHECK(found != kNames.end(),
              "request_policy must be \"any\", \"registered\" or \"script\", got \"", name, "\"");
  return static_cast<RequestPolicy>(found - kNames.begin());
}

const char* toString(RequestPolicy policy) noexcept {
  return kNames[static_cast<std::size_t>(policy)];
}

bool holdsUndefined(const c10::IValue& value) {
  bool found = false;
  value.visit([&](const c10::IValue& part) {
    found = found || (part.isTensor() && !part.toTensor().defined());
    return found || part.isIntList() || part.isDoubleList() || part.isBoolList();
  });
  return found;
}

std::optional<std::string> refusal(RequestPolicy policy, MessageType type,
                                   const std::vector<char>& payload, worker_id_t sender) {
  if (!distrustsPeers(policy)) return std::nullopt;
  const Innermost message = innermost(type, payload);
  if (!message.recognised)
    return "its wrapped message could not be recognised, and " + thePolicyHere(policy);
  // Under `registered` the restricted unpickler of weft/_torch/request_policy.py decides on names.
  if (policy == RequestPolicy::kScript && carriesPython(message.type)) {
    return "it carries pickled Python, and " + thePolicyHere(policy) +
           ": only TorchScript functions and built-in operators are served";
  }
  // rref.backward() at a user: it would add to the gradients of whatever the value was made of, and
  // its thread waits for other workers.
  if (message.type == MessageType::RREF_BACKWARD_REQ)
    return "it begins a backward pass here, and " + thePolicyHere(policy);
  if (const auto fault = faultIn(message, sender)) return *fault + ", and " + thePolicyHere(policy);
  return std::nullopt;
}

std::optional<std::string> refusal(RequestPolicy policy, const c10::FunctionSchema& schema) {
  if (policy == RequestPolicy::kAny) return std::nullopt;
  const std::string& name = schema.name();
  if (!name.starts_with("aten::")) {
    return name + " is not one of PyTorch's own operators (aten::), and " + thePolicyHere(policy);
  }
  if (schema.is_vararg()) {
    return name + " takes the number of its arguments from its caller, and " +
           thePolicyHere(policy);
  }
  if (!computes(schema)) return name + " does more than compute, and " + thePolicyHere(policy);
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->kind() != c10::TypeKind::StringType) continue;
    if (argument.name().find("file") == std::string::npos) continue;
    return name + " reads or writes files, and " + thePolicyHere(policy);
  }
  return std::nullopt;
}

std::optional<std::string> refusal(RequestPolicy policy, const c10::FunctionSchema& schema,
                                   const std::vector<c10::IValue>& values) {
  if (policy == RequestPolicy::kAny) return std::nullopt;
  if (auto why = refusal(policy, schema)) return why;
  const std::size_t count = std::min(values.size(), schema.arguments().size());
  for (std::size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (holdsUndefined(values[i])) {
      return schema.name() + " gets an undefined tensor for " + argument.name() + ", and " +
             thePolicyHere(policy);
    }
    if (!values[i].isInt()) continue;
    const auto size = enumSize(argument);
    const std::int64_t number = values[i].toInt();
    if (size && (number < 0 || number >= *size)) {
      return schema.name() + " knows no " + argument.name() + " of the number " +
             std::to_string(number) + ", and " + thePolicyHere(policy);
    }
  }
  return std::nullopt;
}

}  // namespace weft::rpc
