#include "pipe/python/module_tensors.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_set>

#include "third_party/torch/interpreter.h"

namespace weft::pipe {

namespace py = pybind11;

namespace {

// What is in the slot now: borrowed; nullptr if nothing is.
PyObject* presentIn(const TensorSlot& slot) {
  PyObject* const present = PyDict_GetItemWithError(slot.holder.ptr(), slot.name.ptr());
  if (present == nullptr) PyErr_Clear();
  return present;
}

void put(const TensorSlot& slot) {
  const int status = slot.value.ptr() == nullptr
                         ? PyDict_DelItem(slot.holder.ptr(), slot.name.ptr())
                         : PyDict_SetItem(slot.holder.ptr(), slot.name.ptr(), slot.value.ptr());
  if (status != 0) PyErr_Clear();
}

// torch.nn.parameter.is_lazy
bool isLazy(py::handle value) {
  static PyObject* const mixin =
      py::object(py::module_::import("torch.nn.parameter").attr("UninitializedTensorMixin"))
          .release()
          .ptr();
  return PyType_IsSubtype(Py_TYPE(value.ptr()), reinterpret_cast<PyTypeObject*>(mixin)) != 0;
}

// False for script modules, which keep their parts elsewhere.
bool hasDictionaries(const py::dict& attributes) {
  for (const char* name : {"_parameters", "_buffers", "_modules"}) {
    PyObject* const part = PyDict_GetItemString(attributes.ptr(), name);
    if (part == nullptr || !PyDict_Check(part)) return false;
  }
  return true;
}

class ModuleWalk {
 public:
  void visit(py::handle module) {
    if (!modules_.insert(module.ptr()).second) return;
    PyObject* const dict = PyObject_GenericGetDict(module.ptr(), nullptr);
    if (dict == nullptr) throw py::error_already_set();
    const auto attributes = py::reinterpret_steal<py::dict>(dict);
    if (!hasDictionaries(attributes)) {
      for (const char* const kind : {"parameters", "buffers"}) {
        for (const py::handle tensor : module.attr(kind)())
          add(tensor);
      }
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
  std::vector<TensorSlot> slots;
  bool uninitialized = false;

 private:
  bool add(py::handle value) {
    if (!THPVariable_Check(value.ptr())) return false;
    uninitialized |= isLazy(value);
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (tensors_.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(tensor);
    return true;
  }

  std::unordered_set<PyObject*> modules_;
  std::unordered_set<c10::TensorImpl*> tensors_;
};

}  // namespace

ModuleTensors::~ModuleTensors() { dropWithGil(slots); }

std::shared_ptr<ModuleTensors> ModuleTensors::of(py::handle module) {
  ModuleWalk walk;
  walk.visit(module);
  auto tensors = std::make_shared<ModuleTensors>(std::move(walk.found), std::move(walk.slots));
  tensors->uninitialized = walk.uninitialized;
  return tensors;
}

void ModuleTensors::update() {
  for (TensorSlot& slot : slots) {
    PyObject* const present = presentIn(slot);
    if (present != nullptr && present != slot.value.ptr())
      slot.value = py::reinterpret_borrow<py::object>(present);
  }
}

TensorSlotGuard::TensorSlotGuard(const std::vector<TensorSlot>& then) : then_(then) {
  for (const TensorSlot& slot : then_) {
    PyObject* const present = presentIn(slot);
    if (present == slot.value.ptr()) continue;
    replaced_.push_back({slot.holder, slot.name, py::reinterpret_borrow<py::object>(present)});
    slot.holder[slot.name] = slot.value;
  }
}

TensorSlotGuard::~TensorSlotGuard() {
  const py::error_scope error;  // what the run raised stays
  for (const TensorSlot& slot : then_) {
    if (presentIn(slot) != slot.value.ptr()) put(slot);
  }
  for (const TensorSlot& slot : replaced_)
    put(slot);
}

}  // namespace weft::pipe
