// What weft.pipe._workers uses of C++: the values between stages on workers.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::pipe {

// Called once, when weft._C is imported.
void bindWorkers(pybind11::module_& pipe);

}  // namespace weft::pipe
