// The RPC backend for Python: called once, when weft._C is imported.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::rpc {

// Adds the agent, its options and the environment table to `module`.
void bind(pybind11::module_& module);
// Part of it: what rpc_sync runs in C++ (python_calls.cpp).
void bindCalls(pybind11::module_& module);

}  // namespace weft::rpc
