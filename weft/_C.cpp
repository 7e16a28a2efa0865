// weft._C: what the layers show to Python, each by a function of its own beside what it binds.
#include <torch/csrc/utils/pybind.h>

#include "c10d_plugin/python/bindings.h"
#include "jit_ops/python/bindings.h"
#include "pipe/python/bindings.h"
#include "rpc_backend/python/bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Weft's C++ side for Python.";
  weft::rpc::bind(module);
  weft::pipe::bind(module);
  weft::process_group::bind(module);
  weft::ops::bind(module);
}
