#include "pipe/python_stage.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "pipe/python_values.h"

namespace weft::pipe {

namespace py = pybind11;

namespace {

thread_local PyObject* t_skips = nullptr;  // borrowed

struct SkipsGuard {
  explicit SkipsGuard(PyObject* skips) : before(std::exchange(t_skips, skips)) {}
  ~SkipsGuard() { t_skips = before; }
  SkipsGuard(const SkipsGuard&) = delete;
  SkipsGuard& operator=(const SkipsGuard&) = delete;
  PyObject* before;
};

// All of a sequential module's layers; nothing if one is not TorchScript.
std::optional<ScriptStage> scripted(const py::object& module) {
  const py::object script = py::module_::import("torch.jit").attr("ScriptModule");
  std::vector<torch::jit::Module> layers;
  for (const py::handle layer : module) {
    if (!py::isinstance(layer, script)) return std::nullopt;
    layers.push_back(layer.attr("_c").cast<torch::jit::Module>());
  }
  if (layers.empty()) return std::nullopt;
  return ScriptStage(std::move(layers));
}

bool hasHooks(py::handle module) {
  for (const char* name :
       {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}) {
    if (PyObject_IsTrue(module.attr(name).ptr()) != 0) return true;
  }
  return false;
}

bool hasGlobalHooks() {
  const py::object hooks =
      py::module_::import("torch.nn.modules.module").attr("_has_any_global_hook")();
  return PyObject_IsTrue(hooks.ptr()) != 0;
}

class ParameterWalk {
 public:
  void visit(py::handle module) {
    if (!modules_.insert(module.ptr()).second) return;
    PyObject* const dict = PyObject_GenericGetDict(module.ptr(), nullptr);
    if (dict == nullptr) throw py::error_already_set();
    const auto attributes = py::reinterpret_steal<py::dict>(dict);
    if (!plain(attributes)) {
      for (const py::handle tensor : module.attr("parameters")())
        add(tensor);
      for (const py::handle tensor : module.attr("buffers")())
        add(tensor);
      return;
    }
    for (const auto& item : py::dict(attributes["_parameters"]))
      add(item.second);
    for (const auto& item : py::dict(attributes["_buffers"]))
      add(item.second);
    for (const auto& item : py::dict(attributes["_modules"])) {
      if (!item.second.is_none()) visit(item.second);
    }
  }
  std::vector<at::Tensor> found;

 private:
  // False for script modules, which keep their parts elsewhere.
  static bool plain(const py::dict& attributes) {
    for (const char* name : {"_parameters", "_buffers", "_modules"}) {
      PyObject* const part = PyDict_GetItemString(attributes.ptr(), name);
      if (part == nullptr || !PyDict_Check(part)) return false;
    }
    return true;
  }
  void add(py::handle value) {
    if (!THPVariable_Check(value.ptr())) return;
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (tensors_.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(tensor);
  }

  std::unordered_set<PyObject*> modules_;
  std::unordered_set<c10::TensorImpl*> tensors_;
};

}  // namespace

void throwPythonError() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PythonStage::PythonStage(py::object module, py::object skips)
    : module_(std::move(module)), skips_(std::move(skips)), script_(scripted(module_)) {}

PythonStage::~PythonStage() {
  if (!Py_IsInitialized()) {
    (void)module_.release();
    (void)skips_.release();
    return;
  }
  const py::gil_scoped_acquire gil;
  module_ = py::object();
  skips_ = py::object();
}

void PythonStage::prepare() {
  if (!script_) return;
  const py::gil_scoped_acquire gil;
  try {
    bool hooked = hasGlobalHooks() || hasHooks(module_);
    for (const py::handle layer : module_)
      hooked |= hasHooks(layer);
    hooked_.store(hooked, std::memory_order_relaxed);
  } catch (py::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

Batch PythonStage::forward(const Batch& input) {
  if (script_ && !hooked_.load(std::memory_order_relaxed)) return script_->forward(input);
  const py::gil_scoped_acquire gil;
  const SkipsGuard guard(skips_.ptr());
  PyErr_Clear();  // a failed backward on this thread may have left its error set
  try {
    const py::tuple arguments = toArguments(input);
    const auto result =
        py::reinterpret_steal<py::object>(PyObject_Call(module_.ptr(), arguments.ptr(), nullptr));
    if (!result) throwPythonError();
    return toBatch(result);
  } catch (py::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

std::vector<at::Tensor> PythonStage::parameters() {
  const py::gil_scoped_acquire gil;
  try {
    ParameterWalk walk;
    walk.visit(module_);
    return std::move(walk.found);
  } catch (py::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

py::object currentSkips() {
  return t_skips == nullptr ? py::none() : py::reinterpret_borrow<py::object>(t_skips);
}

}  // namespace weft::pipe
