// ContiguousTensor: a tensor as one piece of memory, as collectives need it. The tensor's own
// memory where it is contiguous, else a copy that writeBack() copies back.
//
// Threads: one at a time; may be made on one thread and used on another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <utility>

namespace weft::process_group {

// Contiguous, and its memory holds its values as they are: no lazy conjugation or negation.
inline bool isPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Throws c10::Error that names the operation, unless the tensor is dense and on the CPU.
void checkDense(const at::Tensor& tensor, const char* title);

// Throws c10::Error if the tensor's storage has become too small for it since checkDense(). For
// what reads or writes its memory: an operation may run long after its call.
void checkMemory(const at::Tensor& tensor);

class ContiguousTensor {
 public:
  enum class Use { kRead, kWrite, kReadWrite };

  ContiguousTensor() = default;
  // Throws as checkMemory() does.
  ContiguousTensor(const at::Tensor& tensor, Use use);
  // `memory`, contiguous, which writeBack() copies to `original` where that is defined.
  ContiguousTensor(at::Tensor memory, at::Tensor original)
      : original_(std::move(original)), memory_(std::move(memory)) {}

  // New memory for what is written to `tensor` by writeBack().
  static ContiguousTensor elsewhere(const at::Tensor& tensor);

  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(memory_.data_ptr()), memory_.nbytes()};
  }
  // The contiguous tensor that bytes() are of.
  const at::Tensor& memory() const { return memory_; }
  void writeBack() const;  // does nothing for a contiguous tensor

 private:
  at::Tensor original_;  // only where it is not `memory_` itself
  at::Tensor memory_;
};

// A contiguous copy that autograd does not see. Both throw as checkMemory() does.
at::Tensor copyOf(const at::Tensor& tensor);
// `into.copy_(from)` that autograd does not see.
void copyInto(const at::Tensor& into, const at::Tensor& from);

}  // namespace weft::process_group
