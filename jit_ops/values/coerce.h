// Converts values to the types that a signature asks for.
//
// Values from Python have inferred types: [1, 2] is a List[int] even if List[float] is wanted, an
// empty list is a list of anything, and 1 may stand for 1.0 or 1+0j. TorchScript converts these
// when Python calls it; for a remote call this code does.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace weft::ops {

// What numbers may become: nothing else; an int a float; or also both a complex number.
enum class Numbers { kKept, kReal, kConverted };

// Converts `value` in place if that loses nothing. False: it can't be a `type`. Any thread.
bool coerce(at::IValue& value, const c10::TypePtr& type);

// One value for each argument of `schema`: positional ones, then those that `names` name (the last
// of `args`), then defaults. Throws c10::Error that says the signature and what does not fit.
std::vector<at::IValue> bindArguments(const c10::FunctionSchema& schema,
                                      std::vector<at::IValue> args,
                                      const std::vector<std::string>& names,
                                      Numbers numbers = Numbers::kConverted);

}  // namespace weft::ops
