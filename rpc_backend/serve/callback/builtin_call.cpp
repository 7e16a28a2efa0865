#include "rpc_backend/serve/callback/builtin_call.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/rpc/profiler/server_process_global_profiler.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weft::rpc {

using torch::distributed::rpc::ForkId;
using torch::distributed::rpc::RRefId;
using torch::jit::Operator;

namespace {

constexpr std::string_view kAten = "aten::";
constexpr std::string_view kAtenOnTheWire = "torch.ops.aten.";
constexpr std::size_t kLongestEnd = 192;  // of the pickle's end, where the name is
constexpr std::size_t kMaxCached = 4096;  // torch has fewer operators; a peer cannot fill more

// The two texts that follow the arguments.
struct Texts {
  at::IValue schema;
  at::IValue name;
};

template <typename Key, typename Value>
class Cache {
 public:
  std::optional<Value> find(const Key& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional<Value>(found->second);
  }
  void keep(const Key& key, Value value) {
    const std::lock_guard lock(mutex_);
    if (values_.size() < kMaxCached) values_.insert_or_assign(key, std::move(value));
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, Value> values_;
};

std::string schemaText(const Operator& op) { return c10::toString(op.schema()); }

Texts textsOf(const std::shared_ptr<Operator>& op) {
  static Cache<std::shared_ptr<Operator>, Texts> cache;
  if (auto texts = cache.find(op)) return *std::move(texts);
  std::string name = op->schema().name();
  TORCH_CHECK(name.starts_with(kAten), "Unexpected operator name ", name);
  name.replace(0, kAten.size(), kAtenOnTheWire);
  Texts texts{schemaText(*op), std::move(name)};
  cache.keep(op, texts);
  return texts;
}

// False once the program that defined the operator has removed it.
bool stillRegistered(const std::shared_ptr<Operator>& op) {
  const auto& all = torch::jit::getAllOperatorsFor(at::Symbol::fromQualString(op->schema().name()));
  return std::find(all.begin(), all.end(), op) != all.end();
}

// The operator that prints so; null when there is none.
std::shared_ptr<Operator> operatorOf(const std::string& name, const std::string& schema) {
  static Cache<std::string, std::shared_ptr<Operator>> cache;
  if (auto op = cache.find(schema); op && stillRegistered(*op)) return *std::move(op);
  const auto symbol =
      at::Symbol::fromQualString(std::string(kAten) + name.substr(kAtenOnTheWire.size()));
  for (const auto& op : torch::jit::getAllOperatorsFor(symbol)) {
    if (schemaText(*op) != schema) continue;
    cache.keep(schema, op);
    return op;
  }
  return nullptr;
}

// A cheap guess; unpickling decides.
bool looksBuiltin(const Message& request) {
  if (request.type() != MessageType::SCRIPT_CALL) return false;
  const std::string_view payload(request.payload().data(), request.payload().size());
  const std::size_t from = payload.size() > kLongestEnd ? payload.size() - kLongestEnd : 0;
  return payload.find(kAtenOnTheWire, from) != std::string_view::npos;
}

MessagePtr encode(const std::shared_ptr<Operator>& op, const torch::jit::Stack& arguments,
                  std::vector<at::IValue> ids, MessageType type) {
  Texts texts = textsOf(op);
  std::vector<at::IValue> values;
  values.reserve(arguments.size() + 2 + ids.size());
  values.insert(values.end(), arguments.begin(), arguments.end());
  values.push_back(std::move(texts.schema));
  values.push_back(std::move(texts.name));
  // Moved, because the pickler memoises values that others hold too.
  for (at::IValue& id : ids)
    values.push_back(std::move(id));
  std::vector<at::Tensor> tensors;
  std::vector<char> payload =
      torch::jit::pickle(c10::ivalue::Tuple::create(std::move(values)), &tensors);
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), type);
}

struct Call {
  std::shared_ptr<Operator> op;
  torch::jit::Stack stack;
};

// Nothing for a request that torch should read.
std::optional<Call> readCall(const Message& request, RequestPolicy policy) {
  try {
    const at::IValue value = torch::jit::unpickle(
        request.payload().data(), request.payload().size(), nullptr, request.tensors());
    if (!value.isTuple()) return std::nullopt;
    std::vector<at::IValue> values = value.toTupleRef().elements().vec();
    if (values.size() < 2 || !values.back().isString()) return std::nullopt;
    const std::string name = values.back().toStringRef();
    values.pop_back();
    if (!name.starts_with(kAtenOnTheWire) || !values.back().isString()) return std::nullopt;
    auto op = operatorOf(name, values.back().toStringRef());
    if (op == nullptr || op->schema().returns().size() != 1) return std::nullopt;
    values.pop_back();
    if (refusal(policy, op->schema(), values)) return std::nullopt;
    if (!hasItsArguments(op->schema(), values)) return std::nullopt;
    return Call{std::move(op), std::move(values)};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool profiled() {
  using torch::distributed::rpc::profiler::processglobal::StateStackEntry;
  return StateStackEntry::current() != nullptr || at::hasThreadLocalCallbacks();
}

}  // namespace

MessagePtr encodeBuiltin(const std::shared_ptr<Operator>& op, const torch::jit::Stack& arguments) {
  return encode(op, arguments, {}, MessageType::SCRIPT_CALL);
}

MessagePtr encodeRemoteBuiltin(const std::shared_ptr<Operator>& op,
                               const torch::jit::Stack& arguments, const RRefId& value,
                               const ForkId& fork) {
  std::vector<at::IValue> ids;
  ids.push_back(value.toIValue());
  ids.push_back(fork.toIValue());
  return encode(op, arguments, std::move(ids), MessageType::SCRIPT_REMOTE_CALL);
}

bool hasItsArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const std::size_t wanted = schema.arguments().size();
  return stack.size() == wanted || (schema.is_vararg() && stack.size() > wanted);
}

MessagePtr serveBuiltin(const Message& request, RequestPolicy policy) {
  if (!looksBuiltin(request) || profiled()) return nullptr;
  std::optional<Call> call = readCall(request, policy);
  if (!call) return nullptr;
  call->op->getOperation()(call->stack);
  TORCH_CHECK(call->stack.size() == 1, call->op->schema().name(), " returned ", call->stack.size(),
              " values instead of one");
  return torch::distributed::rpc::ScriptResp(std::move(call->stack.front())).toMessage();
}

}  // namespace weft::rpc
