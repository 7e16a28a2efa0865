// The pipeline for Python: called once, when weft._C is imported.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::pipe {

// Adds the submodule `pipe` to `module`.
void bind(pybind11::module_& module);

}  // namespace weft::pipe
