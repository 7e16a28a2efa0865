#include "jit_ops/call/find_operator.h"

#include <c10/util/Exception.h>

#include "jit_ops/values/coerce.h"

namespace weft::ops {

std::shared_ptr<torch::jit::Operator> findOperator(const std::string& name,
                                                   const std::vector<at::IValue>& args,
                                                   const std::vector<std::string>& names) {
  const auto dot = name.find('.');
  const auto overloads =
      torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name.substr(0, dot)));
  if (dot != std::string::npos) {
    for (const auto& op : overloads) {
      if (op->schema().overload_name() == name.substr(dot + 1)) return op;
    }
    TORCH_CHECK(false, "torch has no operator ", name);
  }
  for (const Numbers numbers : {Numbers::kKept, Numbers::kReal, Numbers::kConverted}) {
    for (const auto& op : overloads) {
      try {
        bindArguments(op->schema(), args, names, numbers);
        return op;
      } catch (const c10::Error&) {  // this overload takes something else
      }
    }
  }
  TORCH_CHECK(false, "torch has no operator ", name, " that takes these ", args.size(),
              " arguments");
}

}  // namespace weft::ops
