#include "pipe/python/bindings.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>

#include <array>
#include <cstring>
#include <utility>

#include "pipe/stage/rng.h"

namespace weft::pipe {

namespace {

// torch.get_rng_state, set_rng_state, manual_seed, seed and fork_rng call these.
constexpr std::array kMethods{"get_state",           "set_state",           "manual_seed", "seed",
                              "graphsafe_get_state", "graphsafe_set_state", "clone_state"};
std::array<PyCFunction, kMethods.size()> g_methods{};

template <std::size_t K>
PyObject* watched(PyObject* self, PyObject* argument) {
  HANDLE_TH_ERRORS
  if (currentRngScope() != nullptr) touchGenerator(reinterpret_cast<THPGenerator*>(self)->cdata);
  return g_methods[K](self, argument);
  END_HANDLE_TH_ERRORS
}

template <std::size_t K>
void watch(PyMethodDef* methods) {
  for (PyMethodDef* method = methods; method != nullptr && method->ml_name != nullptr; ++method) {
    const int one_argument = METH_NOARGS | METH_O;
    if (std::strcmp(method->ml_name, kMethods[K]) != 0) continue;
    if ((method->ml_flags & one_argument) == 0 || g_methods[K] != nullptr) continue;
    g_methods[K] = std::exchange(method->ml_meth, &watched<K>);
  }
}

}  // namespace

void watchGeneratorMethods() {
  PyMethodDef* const methods = reinterpret_cast<PyTypeObject*>(THPGeneratorClass)->tp_methods;
  [&]<std::size_t... K>(std::index_sequence<K...>) { (watch<K>(methods), ...); }
  (std::make_index_sequence<kMethods.size()>());
}

}  // namespace weft::pipe
