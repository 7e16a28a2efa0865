// Where a program calls a group, for errors. Not by torch's CapturedTraceback: to name its lines,
// torch imports its compiler, which takes seconds.
#include <Python.h>
#include <frameobject.h>

#include <string>
#include <string_view>

#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/python/bindings.h"
#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace weft::process_group {

namespace {

// "…/torch/", set once.
std::string& folderOfTorch() {
  static auto* const folder = new std::string;
  return *folder;
}

// torch's, Weft's between torch and the program, or what decorators and context managers are made
// of.
bool isWrapper(std::string_view file) {
  return !file.ends_with(".py") || file.starts_with(folderOfTorch()) ||
         file.find("/weft/_torch/") != std::string_view::npos || file.ends_with("/contextlib.py") ||
         file.ends_with("/functools.py") || file.ends_with("/typing_extensions.py");
}

std::string_view fileOf(PyFrameObject* frame) {
  const auto code =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  // The frame keeps the code, and that its name.
  const char* const name =
      PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
  if (name == nullptr) PyErr_Clear();
  return name == nullptr ? std::string_view() : std::string_view(name);
}

// "train.py:31": the innermost line of the calling thread that is the program's.
std::string callSite() {
  if (interpreterEnds()) return {};
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* const here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    if (const std::string_view file = fileOf(here); !isWrapper(file)) {
      return std::string(file.substr(file.rfind('/') + 1)) + ":" +
             std::to_string(PyFrame_GetLineNumber(here));
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return {};
}

}  // namespace

void findCallSites() {
  const auto file = py::module_::import("torch").attr("__file__").cast<std::string>();
  folderOfTorch() = file.substr(0, file.rfind('/') + 1);
  OpRecorder::get().findSitesBy(&callSite);
}

}  // namespace weft::process_group
