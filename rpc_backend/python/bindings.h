// The RPC backend for Python: called once, when weft._C is imported.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::rpc {

// Adds the agent, its options and the environment table to `module`.
void bind(pybind11::module_& module);
// Parts of it: what rpc_sync runs in C++ (calls.cpp, python_calls.cpp,
// script_calls.cpp).
void bindCalls(pybind11::module_& module);
void bindPythonCalls(pybind11::module_& module);
void bindScriptCalls(pybind11::module_& module);
// What the callee knows of its call (deadlines.cpp).
void bindDeadlines(pybind11::module_& module);
// The last calls (call_records.cpp).
void bindCallRecords(pybind11::module_& module);
// The log, for Python's logging (log_lines.cpp).
void bindLog(pybind11::module_& module);
// Lets waits in C++ end by Ctrl-C (interrupts.cpp).
void hookInterrupts();

}  // namespace weft::rpc
