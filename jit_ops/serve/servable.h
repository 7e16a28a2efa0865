// Servable: something that can be published, with methods that take and return TorchScript's
// values.
//
// A servable does not change once it is made, and all calls share it: run() is called from many
// worker threads at once, with no lock held. Its author must make its methods safe for that.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/base/api.h"

namespace weft::ops {

using JitFuture = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<JitFuture>;
using Values = std::vector<at::IValue>;

// The method that is meant when none is named; a published function has no other.
inline constexpr const char* kForward = "forward";

class WEFT_API Servable {
 public:
  struct Method {
    // Without self; its name is the method's. Null if there is no signature (Python code that can't
    // be scripted); arguments are then passed on as they are.
    std::unique_ptr<c10::FunctionSchema> schema;
    std::string name;
    std::string signature;     // for people: "forward(Tensor x) -> Tensor"
    c10::TypePtr returns;      // T, also if the method returns Future[T]; Any: unknown
    std::string result_names;  // the NamedTuples in `returns` (result_names.h); empty for none
  };
  virtual ~Servable() = default;

  const std::vector<Method>& methods() const noexcept { return methods_; }
  const Method* find(const std::string& name) const noexcept;

  // Runs a method of this servable. If it has a schema, `args` fit it, one value for each argument;
  // otherwise `names` are those of the last arguments. The future's value is a T, never a
  // Future[T]. Throws std::exception.
  virtual FuturePtr run(const Method& method, Values args,
                        const std::vector<std::string>& names) = 0;

 protected:
  void add(c10::FunctionSchema schema);  // adds a method; the schema is without self
  // Adds a method without a schema.
  void add(const std::string& name, std::string signature, std::string result_names);
  // A value as a future of the method's type. If the value is a future, the result completes with
  // it; this does not block.
  static FuturePtr asFuture(at::IValue value, const c10::TypePtr& type);

 private:
  std::vector<Method> methods_;
};

// The error's text for the caller: what is wrong, not where in this library it was found.
std::string textOf(const std::exception& error);

// Every method of a TorchScript module. With `no_grad` they run without recording for autograd:
// what serving alone needs, but not what a caller in a distributed autograd context wants.
WEFT_API std::shared_ptr<Servable> servable(const torch::jit::Module& module, bool no_grad = false);

// A TorchScript function, under the method name "forward". `owner` keeps its code alive.
WEFT_API std::shared_ptr<Servable> servable(torch::jit::Function& function,
                                            std::shared_ptr<void> owner);

// C++ code. `schema` is a signature as of an operator: "scale(Tensor x, float by=2.0) -> Tensor";
// its method is called "forward" whatever the name says. The code may return a future.
WEFT_API std::shared_ptr<Servable> servable(const std::string& schema,
                                            std::function<at::IValue(Values)> code);

}  // namespace weft::ops
