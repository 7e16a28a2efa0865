#include "pipe/python/stage.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "pipe/python/values.h"

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

// Where a module keeps a tensor.
struct Slot {
  py::dict holder;
  py::object name;
  py::object value;
};

struct PythonTensors final : StageTensors {
  PythonTensors(std::vector<at::Tensor> the_tensors, std::vector<Slot> the_slots)
      : StageTensors(std::move(the_tensors)), slots(std::move(the_slots)) {}
  ~PythonTensors() override {
    if (Py_IsInitialized() == 0) {
      new std::vector<Slot>(std::move(slots));  // there is nobody to give them back to
      return;
    }
    const py::gil_scoped_acquire gil;
    slots.clear();
  }
  std::vector<Slot> slots;
};

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
    for (const char* const kind : {"_parameters", "_buffers"}) {
      const py::dict holder = attributes[kind];
      for (const auto& item : holder) {
        if (!add(item.second)) continue;
        slots.push_back({holder, py::reinterpret_borrow<py::object>(item.first),
                         py::reinterpret_borrow<py::object>(item.second)});
      }
    }
    for (const auto& item : py::dict(attributes["_modules"])) {
      if (!item.second.is_none()) visit(item.second);
    }
  }
  std::vector<at::Tensor> found;
  std::vector<Slot> slots;
  bool uninitialized = false;

 private:
  // False for script modules, which keep their parts elsewhere.
  static bool plain(const py::dict& attributes) {
    for (const char* name : {"_parameters", "_buffers", "_modules"}) {
      PyObject* const part = PyDict_GetItemString(attributes.ptr(), name);
      if (part == nullptr || !PyDict_Check(part)) return false;
    }
    return true;
  }
  bool add(py::handle value) {
    if (!THPVariable_Check(value.ptr())) return false;
    uninitialized |= isLazy(value);
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (tensors_.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(tensor);
    return true;
  }
  // torch.nn.parameter.is_lazy
  static bool isLazy(py::handle value) {
    static PyObject* const mixin =
        py::object(py::module_::import("torch.nn.parameter").attr("UninitializedTensorMixin"))
            .release()
            .ptr();
    return PyType_IsSubtype(Py_TYPE(value.ptr()), reinterpret_cast<PyTypeObject*>(mixin)) != 0;
  }

  std::unordered_set<PyObject*> modules_;
  std::unordered_set<c10::TensorImpl*> tensors_;
};

// While it lives, the module has the tensors of then; afterwards those that it had before, also
// where the run has put others in their places.
class SlotGuard {
 public:
  explicit SlotGuard(const std::vector<Slot>& then) : then_(then) {
    for (const Slot& slot : then_) {
      PyObject* const now = inPlace(slot);
      if (now == slot.value.ptr()) continue;
      replaced_.push_back({slot.holder, slot.name, py::reinterpret_borrow<py::object>(now)});
      slot.holder[slot.name] = slot.value;
    }
  }
  ~SlotGuard() {
    const py::error_scope error;  // what the run raised stays
    for (const Slot& slot : then_) {
      if (inPlace(slot) != slot.value.ptr()) put(slot);
    }
    for (const Slot& slot : replaced_)
      put(slot);
  }
  SlotGuard(const SlotGuard&) = delete;
  SlotGuard& operator=(const SlotGuard&) = delete;

 private:
  static PyObject* inPlace(const Slot& slot) {
    PyObject* const now = PyDict_GetItemWithError(slot.holder.ptr(), slot.name.ptr());
    if (now == nullptr) PyErr_Clear();
    return now;
  }
  static void put(const Slot& slot) {
    const int status = slot.value.ptr() == nullptr
                           ? PyDict_DelItem(slot.holder.ptr(), slot.name.ptr())
                           : PyDict_SetItem(slot.holder.ptr(), slot.name.ptr(), slot.value.ptr());
    if (status != 0) PyErr_Clear();
  }

  const std::vector<Slot>& then_;
  std::vector<Slot> replaced_;
};

// A weight that torch.nn.utils.parametrize.cached() keeps belongs to the graph of whoever asked for
// it first.
void refuseCachedParametrizations() {
  TORCH_CHECK(!cachesParametrizations(),
              "a Pipe has to run stages again for the backward, which it cannot do inside of "
              "torch.nn.utils.parametrize.cached(): call backward() outside of it, or run the "
              "forward inside of it as well.");
}

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
  return call(input);
}

Batch PythonStage::forwardAgain(const Batch& input, const StageTensors& then) {
  if (script_) {
    return hooked_.load(std::memory_order_relaxed) ? Stage::forwardAgain(input, then)
                                                   : script_->forwardAgain(input, then);
  }
  const py::gil_scoped_acquire gil;
  try {
    refuseCachedParametrizations();
    const SlotGuard guard(static_cast<const PythonTensors&>(then).slots);
    return call(input);
  } catch (py::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

Batch PythonStage::call(const Batch& input) {
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

std::shared_ptr<StageTensors> PythonStage::tensors() {
  const py::gil_scoped_acquire gil;
  try {
    ParameterWalk walk;
    walk.visit(module_);
    auto tensors = std::make_shared<PythonTensors>(std::move(walk.found), std::move(walk.slots));
    tensors->uninitialized = walk.uninitialized;
    return tensors;
  } catch (py::error_already_set& error) {
    error.restore();
    throwPythonError();
  }
}

void PythonStage::update(StageTensors& tensors) {
  const py::gil_scoped_acquire gil;
  for (Slot& slot : static_cast<PythonTensors&>(tensors).slots) {
    PyObject* const now = PyDict_GetItemWithError(slot.holder.ptr(), slot.name.ptr());
    if (now == nullptr) PyErr_Clear();
    if (now != nullptr && now != slot.value.ptr()) {
      slot.value = py::reinterpret_borrow<py::object>(now);
    }
  }
}

std::vector<at::Tensor> PythonStage::parameters() { return tensors()->tensors; }

bool cachesParametrizations() {
  // Of the process, as torch has it.
  static PyObject* const module =
      py::object(py::module_::import("torch.nn.utils.parametrize")).release().ptr();
  const py::object count = py::handle(module).attr("_cache_enabled");
  return PyObject_IsTrue(count.ptr()) != 0;
}

py::object currentSkips() {
  return t_skips == nullptr ? py::none() : py::reinterpret_borrow<py::object>(t_skips);
}

}  // namespace weft::pipe
