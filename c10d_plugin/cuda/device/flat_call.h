// FlatCall: the tensors of an operation as contiguous tensors of one dimension, copied only if they
// are not contiguous, or share memory in a way that the operation cannot use.
//
// Threads: made on the caller's thread and current stream; writeBack() on the operation's. Failure:
// an output without memory for each of its elements throws c10::Error (checkWritable).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "c10d_plugin/cuda/device/device_work.h"

namespace weft::process_group {

class FlatCall {
 public:
  explicit FlatCall(const char* title) : title_(title) {}  // static text

  // The tensor as the operation uses it: reads it; writes it; reads and writes it.
  at::Tensor reads(const at::Tensor& tensor);
  at::Tensor writes(const at::Tensor& tensor);
  at::Tensor updates(const at::Tensor& tensor);
  std::vector<at::Tensor> reads(const std::vector<at::Tensor>& tensors);
  // Where outputs share memory, the last one remains.
  std::vector<at::Tensor> writes(const std::vector<at::Tensor>& tensors);
  // `in`, with a copy of each that overlaps an output: an operation writes one piece before it
  // reads the next. One that is its rank's output exactly needs none. `in` and `out` are by rank;
  // an only input is `own`'s.
  std::vector<at::Tensor> apart(std::vector<at::Tensor> in, const std::vector<at::Tensor>& out,
                                int own);
  // Notes a result that the operation does not write to.
  void returns(const at::Tensor& tensor) { outputs_.push_back(tensor); }
  // Notes another tensor that the operation reads.
  void uses(const at::Tensor& tensor);

  // The outputs that were copied get their values.
  void writeBack() const;

  DeviceWork::What what(c10d::OpType type) const {
    return {type, title_, inputs_, outputs_, memory_};
  }

 private:
  at::Tensor writesElsewhere(const at::Tensor& tensor);
  at::Tensor keep(at::Tensor flat);

  const char* title_;
  std::vector<at::Tensor> inputs_, outputs_, memory_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;  // the caller's, its copy
};

}  // namespace weft::process_group
