#include "pipe/python/referents.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_set>
#include <utility>

namespace weft::pipe {

namespace py = pybind11;

namespace {

constexpr std::size_t kMostObjects = 1000;

// The objects found so far; all are borrowed, which is safe while no Python code runs.
struct Search {
  std::vector<PyObject*> rest;
  std::unordered_set<PyObject*> seen;
  std::vector<at::Tensor> tensors;
};

bool isTensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

PyTypeObject* moduleClass() {
  static PyObject* const module =
      py::object(py::module_::import("torch.nn").attr("Module")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(module);
}

bool leadsEverywhere(PyObject* object) {
  return PyType_Check(object) || PyModule_Check(object) || PyFunction_Check(object) ||
         PyObject_TypeCheck(object, moduleClass()) != 0;
}

// A visitproc. An object that the garbage collector does not know refers to no other.
int visit(PyObject* object, void* argument) {
  Search& search = *static_cast<Search*>(argument);
  if (PyObject_IS_GC(object) == 0 || !search.seen.insert(object).second) return 0;
  if (isTensor(object)) {
    search.tensors.push_back(THPVariable_Unpack(object));
  } else if (!leadsEverywhere(object)) {
    search.rest.push_back(object);
  }
  return search.seen.size() < kMostObjects ? 0 : 1;
}

}  // namespace

std::vector<at::Tensor> tensorsBehind(py::handle object) {
  moduleClass();  // may import, which runs Python code
  Search search;
  int full = visit(object.ptr(), &search);
  while (full == 0 && !search.rest.empty()) {
    PyObject* const next = search.rest.back();
    search.rest.pop_back();
    full = Py_TYPE(next)->tp_traverse(next, &visit, &search);  // as gc.get_referents
  }
  return std::move(search.tensors);
}

}  // namespace weft::pipe
