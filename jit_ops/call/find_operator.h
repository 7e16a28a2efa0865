// Finds a built-in operator of torch by its name and arguments.
//
// Threads: any. Failure: c10::Error that names the operator.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <string>
#include <vector>

namespace weft::ops {

// `name` is "aten::add.Tensor", or "aten::add" for the first overload that takes the arguments, the
// last of which have `names`. One that takes the numbers as they are comes before one for which
// they must be converted, as in TorchScript.
std::shared_ptr<torch::jit::Operator> findOperator(const std::string& name,
                                                   const std::vector<at::IValue>& args,
                                                   const std::vector<std::string>& names);

}  // namespace weft::ops
