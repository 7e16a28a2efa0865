// The tensors that a Python object leads to.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace weft::pipe {

// Looks into attributes and slots of objects, and into containers, at any depth, but at 1000
// objects at most. Not into modules of torch.nn, which have tensors of their own, nor into classes,
// functions and Python's modules, which lead everywhere. Runs no Python code. With the GIL.
std::vector<at::Tensor> tensorsBehind(pybind11::handle object);

}  // namespace weft::pipe
