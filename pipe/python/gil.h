// What the stages need of the GIL beyond pybind11: errors that any thread may have.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::pipe {

// Throws what Python has raised as python_error. With the GIL.
[[noreturn]] void throwPythonError();

// Calls `function` with the GIL; what Python raises is thrown as python_error.
auto withGil(const auto& function) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

}  // namespace weft::pipe
