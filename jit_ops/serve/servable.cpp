#include "jit_ops/serve/servable.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <unordered_map>

#include "jit_ops/serve/plain_errors.h"
#include "jit_ops/values/nested_values.h"
#include "jit_ops/values/result_names.h"
#include "rpc_backend/serve/sendable.h"

namespace weft::ops {

namespace {

// The same schema under another name, with the first `skip` arguments left out.
c10::FunctionSchema renamed(const c10::FunctionSchema& schema, const std::string& name,
                            std::size_t skip) {
  const auto& all = schema.arguments();
  std::vector<c10::Argument> arguments(all.begin() + static_cast<std::ptrdiff_t>(skip), all.end());
  return {name, "", std::move(arguments), schema.returns()};
}

bool hasHooks(const c10::ClassType& type) {
  return !type.getForwardHooks().empty() || !type.getForwardPreHooks().empty();
}

// What forward returns once its hooks have run. A hook that returns None leaves the result as it
// is; one of another type makes it anything.
std::vector<c10::Argument> hookedReturns(const c10::ClassType& type,
                                         const std::vector<c10::Argument>& returns) {
  const c10::TypePtr plain =
      returns.empty() ? c10::TypePtr(c10::NoneType::get()) : returns[0].type();
  for (torch::jit::Function* const hook : type.getForwardHooks()) {
    const auto& from = hook->getSchema().returns();
    const bool kept = from.empty() || from[0].type()->kind() == c10::TypeKind::NoneType ||
                      *from[0].type() == *plain;
    if (!kept) return {c10::Argument("", c10::AnyType::get())};
  }
  return returns;
}

// A result as it travels.
at::IValue portable(at::IValue value) {
  TORCH_CHECK_TYPE(!rpc::holdsObject(value), "the result", rpc::kHasObject,
                   "; return its attributes, or the member's value");
  return withoutNames(std::move(value));
}

class ModuleServable : public Servable {
 public:
  ModuleServable(torch::jit::Module module, bool no_grad)
      : module_(std::move(module)), no_grad_(no_grad), hooked_(hasHooks(*module_.type())) {
    for (const auto& method : module_.get_methods()) {
      if (method.name().starts_with("__")) continue;
      torch::jit::Function& function = method.function();
      function.ensure_defined();
      c10::FunctionSchema schema = renamed(function.getSchema(), method.name(), 1);
      if (hooked_ && method.name() == kForward)
        schema = schema.cloneWithReturns(hookedReturns(*module_.type(), schema.returns()));
      add(std::move(schema));
      functions_.emplace(method.name(), &function);
    }
    TORCH_CHECK(!functions_.empty(), "a module without a scripted method has nothing to publish");
  }

  FuturePtr run(const Method& method, Values args,
                const std::vector<std::string>& /*names*/) override {
    const at::AutoGradMode grad(!no_grad_ && at::GradMode::is_enabled());
    at::IValue result = value(method, std::move(args));
    // What TorchScript compiled for a run with gradients gives a history also without.
    if (no_grad_) result = detached(std::move(result));
    return asFuture(std::move(result), method.returns);
  }

 private:
  at::IValue value(const Method& method, Values args) {
    if (hooked_ && method.name == kForward) return module_(std::move(args));
    args.insert(args.begin(), module_._ivalue());
    functions_.at(method.name)->run(args);
    return std::move(args.back());
  }

  torch::jit::Module module_;
  const bool no_grad_;
  const bool hooked_;  // forward has hooks, which its Function does not run
  std::unordered_map<std::string, torch::jit::Function*> functions_;
};

// One function, under the method name "forward".
class CodeServable : public Servable {
 public:
  CodeServable(const c10::FunctionSchema& schema, std::function<at::IValue(Values)> code)
      : code_(std::move(code)) {
    add(renamed(schema, kForward, 0));
  }

  FuturePtr run(const Method& method, Values args,
                const std::vector<std::string>& /*names*/) override {
    return asFuture(code_(std::move(args)), method.returns);
  }

 private:
  const std::function<at::IValue(Values)> code_;
};

}  // namespace

const Servable::Method* Servable::find(const std::string& name) const noexcept {
  for (const Method& method : methods_) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

void Servable::add(c10::FunctionSchema schema) {
  Method method;
  TORCH_CHECK(schema.returns().size() <= 1, schema.name(),
              " returns several values; return a tuple");
  method.returns =
      schema.returns().empty() ? c10::TypePtr(c10::NoneType::get()) : schema.returns()[0].type();
  if (const auto future = method.returns->cast<c10::FutureType>())
    method.returns = future->getElementType();
  method.result_names = namesIn(method.returns);
  method.name = schema.name();
  method.signature = c10::str(schema);
  method.schema = std::make_unique<c10::FunctionSchema>(std::move(schema));
  methods_.push_back(std::move(method));
}

void Servable::add(const std::string& name, std::string signature, std::string result_names) {
  Method method;
  method.name = name;
  method.signature = std::move(signature);
  method.result_names = std::move(result_names);
  method.returns = c10::AnyType::get();
  methods_.push_back(std::move(method));
}

FuturePtr Servable::asFuture(at::IValue value, const c10::TypePtr& type) {
  if (value.isFuture()) {
    auto inner = value.toFuture();
    return inner->then([](JitFuture& done) { return portable(done.value()); }, withoutNames(type));
  }
  auto future = c10::make_intrusive<JitFuture>(withoutNames(type));
  future->markCompleted(portable(std::move(value)));
  return future;
}

// c10::Error's what() would look up the name of each frame.
std::string textOf(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours == nullptr ? error.what() : ours->what_without_backtrace();
}

std::shared_ptr<Servable> servable(const torch::jit::Module& module, bool no_grad) try {
  return std::make_shared<ModuleServable>(module, no_grad);
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

std::shared_ptr<Servable> servable(torch::jit::Function& function, std::shared_ptr<void> owner) {
  function.ensure_defined();
  return std::make_shared<CodeServable>(function.getSchema(),
                                        [&function, owner = std::move(owner)](Values args) {
                                          function.run(args);
                                          return std::move(args.back());
                                        });
}

std::shared_ptr<Servable> servable(const std::string& schema,
                                   std::function<at::IValue(Values)> code) try {
  return std::make_shared<CodeServable>(torch::jit::parseSchema(schema), std::move(code));
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

}  // namespace weft::ops
