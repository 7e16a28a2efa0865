// The Python stacks that torch captures, as its tools show them. torch's own header for this
// includes one that its wheel lacks.
#pragma once

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

namespace torch {
// For each a list of frames: dictionaries with the name, filename and line. Needs the GIL.
TORCH_API std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
}  // namespace torch

namespace weft {

// Empty where none was captured. Needs the GIL.
inline pybind11::object framesOf(const std::shared_ptr<torch::CapturedTraceback>& traceback) {
  if (!traceback) return pybind11::list();
  std::vector<torch::CapturedTraceback*> one{traceback.get()};
  return torch::py_symbolize(one).at(0);
}

}  // namespace weft
