// The values in a pickle of a peer that is not trusted: each function gives what is wanted, or
// throws c10::Error where the pickle has something else. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::rpc::pickled_values {

// `what`: a clause that says what is wrong.
inline void check(bool right, const char* what) { TORCH_CHECK(right, what); }

inline std::int64_t intOf(const at::IValue& value) {
  check(value.isInt(), "a number is missing");
  return value.toInt();
}

inline const std::string& textOf(const at::IValue& value) {
  check(value.isString(), "a text is missing");
  return value.toStringRef();
}

inline const at::Tensor& tensorOf(const at::IValue& value) {
  check(value.isTensor(), "a tensor is missing");
  return value.toTensor();
}

inline std::vector<at::IValue> partsOf(const at::IValue& value, std::size_t least = 0) {
  check(value.isTuple() && value.toTupleRef().elements().size() >= least, "a tuple is too short");
  return value.toTupleRef().elements().vec();
}

inline std::vector<std::int64_t> sizesOf(const at::IValue& value) {
  std::vector<std::int64_t> sizes;
  for (const at::IValue& one : partsOf(value)) {
    sizes.push_back(intOf(one));
    check(sizes.back() >= 0, "a size is negative");
  }
  return sizes;
}

}  // namespace weft::rpc::pickled_values
