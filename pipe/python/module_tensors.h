// The tensors of a Python module by their places in its dictionaries.
//
// A recomputation needs the tensors of its forward, whatever the module has by then. All with the
// GIL held, except ~ModuleTensors.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "pipe/stage/stage.h"

namespace weft::pipe {

// Where a module keeps a tensor.
struct TensorSlot {
  pybind11::dict holder;
  pybind11::object name;
  pybind11::object value;
};

struct ModuleTensors final : StageTensors {
  ModuleTensors(std::vector<at::Tensor> the_tensors, std::vector<TensorSlot> the_slots)
      : StageTensors(std::move(the_tensors)), slots(std::move(the_slots)) {}
  ~ModuleTensors() override;

  // Parameters and buffers of the module and of all modules in it.
  static std::shared_ptr<ModuleTensors> of(pybind11::handle module);
  // What the module has put in the slots' places since counts from now on.
  void update();

  std::vector<TensorSlot> slots;
};

// While it lives, the module has the tensors of then. Its end puts back those that it had before,
// also where the run has put others in their places.
class TensorSlotGuard {
 public:
  explicit TensorSlotGuard(const std::vector<TensorSlot>& then);
  ~TensorSlotGuard();
  TensorSlotGuard(const TensorSlotGuard&) = delete;
  TensorSlotGuard& operator=(const TensorSlotGuard&) = delete;

 private:
  const std::vector<TensorSlot>& then_;
  std::vector<TensorSlot> replaced_;
};

}  // namespace weft::pipe
