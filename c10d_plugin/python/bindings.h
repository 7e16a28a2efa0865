// The process group for Python: called once, when weft._C is imported.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::process_group {

// Adds the backend and its options to `module`.
void bind(pybind11::module_& module);
// Parts of it: the record of the last operations (recorded_ops.cpp), the program's lines that
// errors name (call_site.cpp), DDP's buckets (group_memory.cpp).
void bindRecorder(pybind11::module_& module);
void findCallSites();
void bindGroupMemory(pybind11::module_& module);

}  // namespace weft::process_group
