// weft._C: what the layers show to Python, each by a function of its own beside what it binds.
#include <torch/csrc/utils/pybind.h>

#include "c10d_plugin/python.h"
#include "jit_ops/python.h"
#include "pipe/python.h"
#include "rpc_backend/python.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Weft's C++ side for Python.";
  weft::rpc::bind(module);
  weft::pipe::bind(module);
  weft::process_group::bind(module);
  weft::ops::bind(module);
}
