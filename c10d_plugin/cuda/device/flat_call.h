// FlatCall: the tensors of an operation as contiguous tensors of one dimension, copied only if they
// are not contiguous.
//
// Threads: made on the caller's thread and current stream; writeBack() on the operation's.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "c10d_plugin/cuda/device/device_work.h"

namespace weft::process_group {

class FlatCall {
 public:
  // The tensor as the operation uses it: reads it; writes it; reads and writes it.
  at::Tensor reads(const at::Tensor& tensor);
  at::Tensor writes(const at::Tensor& tensor);
  at::Tensor updates(const at::Tensor& tensor);
  std::vector<at::Tensor> reads(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> writes(const std::vector<at::Tensor>& tensors);
  // Notes another tensor that the operation reads.
  void uses(const at::Tensor& tensor);

  // The outputs that were copied get their values.
  void writeBack() const;

  DeviceWork::What what(c10d::OpType type, const char* title) const {
    return {type, title, inputs_, outputs_, memory_};
  }

 private:
  at::Tensor keep(at::Tensor flat);

  std::vector<at::Tensor> inputs_, outputs_, memory_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;  // the caller's, its copy
};

}  // namespace weft::process_group
