// What differs between the versions of Python that Weft is built with.
#pragma once

#include <Python.h>

namespace weft {

// Whether the interpreter ends or has ended: a thread that asks for the GIL then never gets it.
inline bool interpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

}  // namespace weft
