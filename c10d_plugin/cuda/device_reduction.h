// DeviceReduction: a ReduceOp on tensors of a device, by ATen's operators.
//
// The parts are combined in the order of the ranks, whoever does it, so all get the same bits.
// float16 and bfloat16 are summed in float32 and rounded once, integers of up to 32 bits for AVG in
// int64. AVG of integers rounds toward zero.
//
// Threads: any; works on the current stream. Failure: the constructor throws c10::Error, naming
// both, for a type that has no such reduction; the others throw what ATen throws.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <vector>

namespace weft::process_group {

class DeviceReduction {
 public:
  DeviceReduction(const c10d::ReduceOp& op, c10::ScalarType type, const char* title);

  // A rank's contribution, which PREMUL_SUM multiplies.
  void put(const at::Tensor& from, const at::Tensor& into) const;
  void combine(const std::vector<at::Tensor>& parts, const at::Tensor& into) const;

  std::int64_t code() const { return static_cast<std::int64_t>(op_); }
  const at::Tensor& factor() const { return factor_; }  // undefined except for PREMUL_SUM

 private:
  // What sums are made in: the type of the tensors or one with more room.
  c10::ScalarType sumType() const;
  void add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) const;

  const c10d::ReduceOp::RedOpType op_;
  const c10::ScalarType type_;
  at::Tensor factor_;
};

}  // namespace weft::process_group
