// What jit_ops shows to Python: publishing and calling. weft/publishing.py and weft/calling.py are
// the skin over it.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::ops {

void bind(pybind11::module_& module);

}  // namespace weft::ops
