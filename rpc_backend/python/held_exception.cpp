#include "rpc_backend/python/held_exception.h"

#include <utility>

#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

void release(PyObject* object) {
  auto owned = py::reinterpret_steal<py::object>(object);
  dropWithGil(owned);
}

std::string textOf(const py::object& exception) {
  std::string text = py::str(py::type::of(exception).attr("__name__"));
  try {
    text += ": " + std::string(py::str(exception));
  } catch (py::error_already_set&) {
    // Its __str__ raises.
  }
  return text;
}

}  // namespace

HeldException::HeldException(const py::error_already_set& raised)
    : exception_(py::object(raised.value()).release().ptr(), &release),
      text_(std::make_shared<const std::string>(textOf(raised.value()))) {
  PyException_SetTraceback(exception_.get(), Py_None);
}

void HeldException::restore() const {
  try {
    const auto failures = py::module_::import("weft._torch.patches.failures");
    const py::object again = failures.attr("another_like")(py::handle(exception_.get()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(again.ptr())), again.ptr());
  } catch (py::error_already_set& error) {
    error.restore();
  }
}

void translateHeldExceptions() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(std::move(thrown));
    } catch (const HeldException& error) {
      error.restore();
    }
  });
}

}  // namespace weft::rpc
