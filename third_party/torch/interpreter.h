// The end of the interpreter, which threads and objects of Weft's may outlive.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace weft {

// Whether the interpreter ends or has ended: a thread that asks for the GIL then never gets it.
inline bool interpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// Drops what has Python objects in it, in a destructor on any thread, with or without the GIL. An
// interpreter that has ended cannot take them back: they leak.
template <typename T>
void dropWithGil(T& objects) {
  if (interpreterEnds()) {
    new T(std::move(objects));
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  objects = T();
}

}  // namespace weft
