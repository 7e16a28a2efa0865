#include "pipe/python/values.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "pipe/python/gil.h"
#include "pipe/python/referents.h"
#include "third_party/torch/interpreter.h"

namespace weft::pipe {

namespace py = pybind11;

namespace {

using Kind = Structure::Kind;

bool isPlain(PyObject* object) {
  return object == Py_None || PyLong_Check(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object);
}

// Whether two objects differ in what can be told: numbers, texts and classes, also in lists and
// tuples. Others, such as a default's function, may be made anew for each micro-batch.
bool differ(PyObject* one, PyObject* other) {
  if (one == other) return false;
  if (Py_TYPE(one) != Py_TYPE(other) || PyType_Check(one)) return true;
  if (isPlain(one)) return PyObject_RichCompareBool(one, other, Py_EQ) == 0;
  if (!PyList_Check(one) && !PyTuple_Check(one)) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(one);
  if (count != PySequence_Fast_GET_SIZE(other)) return true;
  for (Py_ssize_t at = 0; at < count; ++at) {
    if (differ(PySequence_Fast_GET_ITEM(one, at), PySequence_Fast_GET_ITEM(other, at))) return true;
  }
  return false;
}

// A Python object in an IValue. torch's own holder cannot be linked: libtorch_python hides what it
// infers types with.
class HeldObject final : public HeldValue {
 public:
  explicit HeldObject(py::handle object) : object_(py::reinterpret_borrow<py::object>(object)) {}
  ~HeldObject() override { dropWithGil(object_); }
  PyObject* getPyObject() override { return object_.ptr(); }

  // For TorchScript's stages: None, numbers, strings, and lists of such.
  c10::InferredType tryToInferType() override {
    const py::gil_scoped_acquire gil;
    const std::optional<c10::IValue> value = scriptValue(object_);
    if (value) return c10::InferredType(value->type());
    return c10::InferredType(
        "TorchScript stages take tensors, numbers, strings and lists of them, not " +
        std::string(Py_TYPE(object_.ptr())->tp_name));
  }
  c10::IValue toIValue(const c10::TypePtr& /*type*/, std::optional<int32_t> /*n*/) override {
    const py::gil_scoped_acquire gil;
    return scriptValue(object_).value();
  }
  bool equals(const c10::IValue& other) const override {
    return withGil([&] {
      if (isKeys()) return object_.equal(py::handle(other.toPyObject()));
      return !differ(object_.ptr(), other.toPyObject());
    });
  }
  // As the places in Structures have it: a class, a list of keys, or how to build a container.
  std::string description() const override {
    return withGil([&] {
      if (isKeys()) return "with keys " + py::repr(object_).cast<std::string>();
      const bool container = PyTuple_Check(object_.ptr());
      const py::object type = container ? object_[py::int_(2)] : object_;
      std::string name = "a " + type.attr("__name__").cast<std::string>();
      if (!container || object_[py::int_(1)].is_none()) return name;
      return name + " with " + py::repr(object_[py::int_(1)]).cast<std::string>();
    });
  }
  // Names it in messages: what str() of it says may be long.
  std::string toStr() override { return Py_TYPE(object_.ptr())->tp_name; }
  std::vector<at::Tensor> extractTensors() override {
    if (isPlain(object_.ptr())) return {};
    const py::gil_scoped_acquire gil;
    return tensorsBehind(object_);
  }

 private:
  static std::optional<c10::IValue> scriptValue(py::handle object) {
    if (object.is_none()) return c10::IValue();
    if (PyBool_Check(object.ptr())) return c10::IValue(object.cast<bool>());
    if (PyLong_Check(object.ptr())) return c10::IValue(object.cast<std::int64_t>());
    if (PyFloat_Check(object.ptr())) return c10::IValue(object.cast<double>());
    if (PyUnicode_Check(object.ptr())) return c10::IValue(object.cast<std::string>());
    if (!PyList_Check(object.ptr()) || PyList_Size(object.ptr()) == 0) return std::nullopt;
    std::vector<c10::IValue> items;
    for (const py::handle item : object) {
      const std::optional<c10::IValue> value = scriptValue(item);
      if (!value || (!items.empty() && *value->type() != *items[0].type())) return std::nullopt;
      items.push_back(*value);
    }
    c10::impl::GenericList list(items[0].type());
    for (c10::IValue& item : items)
      list.push_back(std::move(item));
    return list;
  }

  // A dictionary's, of which all can be compared.
  bool isKeys() const { return PyList_CheckExact(object_.ptr()); }

  py::object object_;
};

c10::IValue held(py::handle object) {
  return c10::IValue(
      c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<HeldObject>(object)));
}

py::object heldIn(const c10::IValue& value) {
  if (!value.isPyObject()) return torch::jit::toPyObject(value);  // from a script stage
  return py::reinterpret_borrow<py::object>(value.toPyObject());
}

// A subclass that is Python's alone: the tensors that the engine makes of it are torch's own. Those
// of a class with __torch_dispatch__ are of that class already.
bool hasOwnClass(PyObject* tensor) {
  return !THPVariable_CheckExact(tensor) &&
         !THPVariable_Unpack(tensor).unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

bool isNamedTuple(PyObject* object) {
  return PyTuple_Check(object) && !PyTuple_CheckExact(object) &&
         PyObject_HasAttrString(object, "_make") != 0;
}

// torch.utils._pytree's table: per type, how its values are taken apart and built.
py::dict registeredNodes() {
  return py::module_::import("torch.utils._pytree").attr("SUPPORTED_NODES");
}

Structure sequence(Kind kind, py::handle value, std::vector<at::Tensor>& tensors) {
  Structure structure{kind, {}, {}};
  for (const py::handle item : value)
    structure.parts.push_back(addPart(item, tensors));
  return structure;
}

// Takes the value apart, whatever is in it; kValue for what has no parts. A container of another
// class keeps how it is built, with what, and its class.
Structure apart(py::handle value, std::vector<at::Tensor>& tensors) {
  PyObject* const object = value.ptr();
  if (THPVariable_Check(object)) {
    tensors.push_back(THPVariable_Unpack(object));
    return hasOwnClass(object) ? Structure{Kind::kTensor, held(py::type::of(value)), {}}
                               : Structure();
  }
  if (PyTuple_CheckExact(object)) return sequence(Kind::kTuple, value, tensors);
  if (PyList_CheckExact(object)) return sequence(Kind::kList, value, tensors);
  if (PyDict_CheckExact(object)) {
    Structure structure{Kind::kDict, held(py::list(py::reinterpret_borrow<py::dict>(value))), {}};
    for (const auto& item : py::reinterpret_borrow<py::dict>(value)) {
      structure.parts.push_back(addPart(item.second, tensors));
    }
    return structure;
  }
  if (isPlain(object)) return {Kind::kValue, held(value), {}};
  if (isNamedTuple(object)) {
    Structure structure = sequence(Kind::kCustom, value, tensors);
    structure.value = held(py::make_tuple(py::type::of(value), py::none(), py::type::of(value)));
    return structure;
  }
  const py::dict nodes = registeredNodes();
  const py::object type = py::type::of(value);
  if (!nodes.contains(type)) return {Kind::kValue, held(value), {}};
  const py::object node = nodes[type];
  const py::tuple flat = node.attr("flatten_fn")(value);
  Structure structure = sequence(Kind::kCustom, flat[0], tensors);
  structure.value = held(py::make_tuple(node.attr("unflatten_fn"), flat[1], type));
  return structure;
}

// Builds the structure; takes tensors from `next` on.
py::object build(const Structure& structure, const std::vector<at::Tensor>& tensors,
                 std::size_t& next) {
  if (structure.kind == Kind::kTensor) {
    auto tensor = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors.at(next++)));
    // The class of this very tensor: as_subclass() would make a view of it, which is not to be
    // written where the stage runs without a graph.
    if (!structure.value.isNone()) tensor.attr("__class__") = heldIn(structure.value);
    return tensor;
  }
  if (structure.kind == Kind::kValue) return heldIn(structure.value);
  py::list parts;
  for (const Structure& part : structure.parts)
    parts.append(build(part, tensors, next));
  switch (structure.kind) {
    case Kind::kTuple:
      return py::tuple(parts);
    case Kind::kList:
      return parts;
    case Kind::kDict: {
      py::dict dict;
      const py::list keys = heldIn(structure.value);
      for (std::size_t k = 0; k < structure.parts.size(); ++k)
        dict[keys[k]] = parts[k];
      return dict;
    }
    default:
      break;
  }
  const py::tuple how = heldIn(structure.value);
  return how[1].is_none() && py::isinstance<py::type>(how[0]) ? how[0].attr("_make")(parts)
                                                              : how[0](parts, how[1]);
}

}  // namespace

Structure addPart(py::handle value, std::vector<at::Tensor>& tensors) {
  const std::size_t before = tensors.size();
  Structure structure = apart(value, tensors);
  if (structure.kind != Kind::kTensor && tensors.size() == before) {
    return {Kind::kValue, held(value), {}};
  }
  return structure;
}

Batch toBatch(py::handle value) {
  Batch batch;
  batch.structure = shared(apart(value, batch.tensors));
  return batch;
}

py::object toPython(const Batch& batch) {
  std::size_t next = 0;
  return build(structureOf(batch), batch.tensors, next);
}

py::tuple toArguments(const Batch& batch) {
  py::object value = toPython(batch);
  if (PyTuple_Check(value.ptr()) || PyList_CheckExact(value.ptr())) return py::tuple(value);
  return py::make_tuple(std::move(value));
}

}  // namespace weft::pipe
