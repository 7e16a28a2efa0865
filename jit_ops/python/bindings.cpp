#include "jit_ops/python/bindings.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/jit/python/module_python.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "jit_ops/call/calls.h"
#include "jit_ops/serve/batched.h"
#include "jit_ops/serve/published.h"
#include "jit_ops/serve/servable.h"
#include "jit_ops/values/result_names.h"
#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace {

using namespace weft::ops;  // NOLINT(google-build-using-namespace): this file is its Python face

// torch's own inference, by way of Python: libtorch_python does not export it. It takes bytes for a
// string, which the other end would get, and knows the enums and classes of TorchScript, which
// nobody can unpickle.
at::IValue inferred(py::handle object) {
  if (PyBytes_Check(object.ptr())) throw py::type_error("unknown to TorchScript");
  const auto infer = py::module_::import("torch._C").attr("_jit_try_infer_type");
  const py::object found = infer(object);
  if (!found.attr("success")().cast<bool>()) throw py::type_error("unknown to TorchScript");
  const auto type = found.attr("type")().cast<c10::TypePtr>();
  if (type->kind() == c10::TypeKind::EnumType || type->kind() == c10::TypeKind::ClassType)
    throw py::type_error("cannot be sent");
  return torch::jit::toIValue(object, type);
}

bool isRRef(py::handle object) { return py::isinstance<torch::distributed::rpc::PyRRef>(object); }

// Not by inference, which takes torch's Python class of RRefs for one that TorchScript compiles.
at::IValue rrefValue(py::handle object, const std::string& what) {
  at::IValue value = torch::jit::toIValue(object, c10::RRefType::create(c10::AnyType::get()));
  if (value.toRRef()->type()->kind() == c10::TypeKind::PyObjectType) {
    throw py::type_error(what +
                         " holds an RRef of a Python object, which published modules cannot "
                         "use: one of a tensor or of another value of TorchScript can be sent");
  }
  return value;
}

// How deeply lists, tuples and dicts may be nested. Pickler and unpickler recurse into them, and a
// request policy refuses a pickle of 512 levels, of which a list takes two (pickle_scan.h).
constexpr int kMaxDepth = 200;

void checkDepth(const std::string& what, int depth) {
  if (depth <= kMaxDepth) return;
  throw py::value_error(what + " is nested more than " + std::to_string(kMaxDepth) +
                        " lists, tuples and dicts deep, or holds itself: pass a flatter value");
}

at::IValue toValue(py::handle object, const std::string& what, int depth = 0);

// TorchScript's dicts have keys of one type.
at::IValue dictValue(const py::dict& dict, const std::string& what, int depth) {
  const auto typeOf = [](const at::IValue& key) {
    return key.isTensor() ? c10::TypePtr(c10::TensorType::get()) : key.type();
  };
  c10::TypePtr keys = c10::StringType::get();
  if (!dict.empty()) keys = typeOf(toValue((*dict.begin()).first, what, depth));
  c10::Dict<at::IValue, at::IValue> out(keys, c10::AnyType::get());
  for (const auto& [key, value] : dict) {
    at::IValue made = toValue(key, what, depth);
    if (*typeOf(made) != *keys) {
      throw py::type_error(what + " holds a dict with keys of two types, " +
                           keys->annotation_str() + " and " + typeOf(made)->annotation_str() +
                           ": TorchScript's dicts have keys of one type");
    }
    out.insert(std::move(made), toValue(value, what, depth));
  }
  return out;
}

// Containers go as lists, tuples and dicts of Any: the signature at the other end says of what,
// also of the empty ones. Throws TypeError for what TorchScript does not know, ValueError for what
// is nested too deeply. `depth`: how many containers the object is in.
at::IValue toValue(py::handle object, const std::string& what, int depth) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (object.is_none()) return {};
  if (isRRef(object)) return rrefValue(object, what);
  checkDepth(what, depth);
  if (py::isinstance<py::list>(object)) {
    c10::List<at::IValue> out(c10::AnyType::get());
    for (const py::handle element : object)
      out.push_back(toValue(element, what, depth + 1));
    return out;
  }
  if (py::isinstance<py::tuple>(object)) {
    std::vector<at::IValue> out;
    for (const py::handle element : object)
      out.push_back(toValue(element, what, depth + 1));
    return c10::ivalue::Tuple::create(std::move(out));
  }
  if (py::isinstance<py::dict>(object))
    return dictValue(py::reinterpret_borrow<py::dict>(object), what, depth + 1);
  try {
    return inferred(object);
  } catch (const std::exception&) {
    if (PyLong_Check(object.ptr()))
      throw py::value_error(what + " holds an int that does not fit in 64 bits");
    if (PyUnicode_Check(object.ptr()))
      throw py::value_error(what + " holds a str with a lone surrogate, which UTF-8 does not have");
    throw py::type_error(what + " holds a '" + Py_TYPE(object.ptr())->tp_name +
                         "', which TorchScript does not know: tensors, numbers, strings, lists, "
                         "tuples, dicts of them and RRefs can be sent");
  }
}

// Python's own code behind names: what can't be scripted. Runs with the GIL; values go in and out
// as TorchScript's, so nothing of a peer is unpickled.
class PythonServable : public Servable {
 public:
  // Name, signature, names in the result, function.
  using Methods = std::vector<std::tuple<std::string, std::string, std::string, py::object>>;

  explicit PythonServable(Methods methods) {
    for (auto& [name, signature, result_names, function] : methods) {
      add(name, signature, result_names);
      functions_.emplace(name, std::move(function));
    }
  }

  // Any thread may let go of it.
  ~PythonServable() override { weft::dropWithGil(functions_); }

  FuturePtr run(const Method& method, Values args, const std::vector<std::string>& names) override {
    const py::gil_scoped_acquire gil;
    at::IValue result;
    try {
      const std::size_t positional = args.size() - names.size();
      py::tuple given(positional);
      py::dict keywords;
      for (std::size_t i = 0; i < positional; ++i)
        given[i] = torch::jit::toPyObject(args[i]);
      for (std::size_t i = 0; i < names.size(); ++i)
        keywords[py::str(names[i])] = torch::jit::toPyObject(args[positional + i]);
      const py::object returned = functions_.at(method.name)(*given, **keywords);
      result = toValue(returned, "what " + method.signature + " returned");
    } catch (const py::error_already_set& error) {
      throw std::runtime_error(error.what());  // its end needs the GIL: here, not at the catcher's
    } catch (const py::builtin_exception& error) {
      throw std::runtime_error(error.what());
    }
    return asFuture(std::move(result), method.returns);
  }

 private:
  std::unordered_map<std::string, py::object> functions_;
};

using Batch = std::optional<std::pair<std::size_t, double>>;  // requests, seconds

std::int64_t publishAs(const std::string& name, std::shared_ptr<Servable> made,
                       std::int64_t version, const Batch& batch) {
  if (batch) {
    const auto delay = std::chrono::microseconds(static_cast<std::int64_t>(batch->second * 1e6));
    made = batched(std::move(made), {.max_requests = batch->first, .max_delay = delay});
  }
  return publish(name, std::move(made), version);
}

void bindPublishing(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def(
      "publish_module",
      [](const std::string& name, const torch::jit::Module& scripted, std::int64_t version,
         bool no_grad, const Batch& batch) {
        return publishAs(name, servable(scripted, no_grad), version, batch);
      },
      py::arg("name"), py::arg("module"), py::arg("version"), py::arg("no_grad"), py::arg("batch"),
      no_gil);
  module.def(
      "publish_function",
      [](const std::string& name, const torch::jit::StrongFunctionPtr& scripted,
         std::int64_t version, const Batch& batch) {
        return publishAs(name, servable(*scripted.function_, scripted.cu_), version, batch);
      },
      py::arg("name"), py::arg("function"), py::arg("version"), py::arg("batch"), no_gil);
  module.def(
      "publish_python",
      [](const std::string& name, PythonServable::Methods methods, std::int64_t version) {
        auto made = std::make_shared<PythonServable>(std::move(methods));
        const py::gil_scoped_release released;
        return publish(name, std::move(made), version);
      },
      py::arg("name"), py::arg("methods"), py::arg("version"));
  module.def("unpublish", &unpublish, py::arg("name"), py::arg("version"), no_gil);
  py::class_<PublishedInfo>(module, "PublishedInfo")
      .def_readonly("name", &PublishedInfo::name)
      .def_readonly("version", &PublishedInfo::version)
      .def_readonly("methods", &PublishedInfo::methods);
  module.def("published", &published, "What this process publishes.", no_gil);
  module.def("published_by", &publishedBy, py::arg("worker"), py::arg("timeout"), no_gil,
             "What that worker publishes.");
}

void addArguments(Call& call, const py::tuple& args, const py::dict& kwargs) {
  for (std::size_t i = 0; i < args.size(); ++i)
    call.args.push_back(toValue(args[i], "argument " + std::to_string(i)));
  for (const auto& [key, value] : kwargs) {
    if (!py::isinstance<py::str>(key)) throw py::type_error("names of arguments must be strings");
    call.options.names.push_back(py::cast<std::string>(key));
    call.args.push_back(toValue(value, "argument '" + call.options.names.back() + "'"));
  }
}

// A result with NamedTuples as the Python object that has them. Any thread, without the GIL.
at::IValue withNames(at::IValue value) {
  const std::optional<Named> found = takeNames(value);
  if (!found) return value;
  const py::gil_scoped_acquire gil;
  const py::object plain = torch::jit::toPyObject(found->value);
  try {
    const auto named = py::module_::import("weft._remote.named_tuples").attr("named");
    return torch::jit::toIValue(named(found->names, plain), c10::PyObjectType::get());
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(error.what());  // its end needs the GIL: here, not at the catcher's
  }
}

template <typename Run>
auto without_gil(Run&& run) {
  const py::gil_scoped_release released;
  return run();
}

// A binding for each way to call, all with the same arguments.
template <typename Make>
void bindCall(py::module_& module, const char* name, Make make) {
  module.def(
      name,
      [make](std::string worker, std::string published, const py::tuple& args,
             const py::dict& kwargs, std::string method, std::int64_t version, double timeout) {
        Call call{.worker = std::move(worker),
                  .name = std::move(published),
                  .options = {.method = std::move(method), .version = version, .timeout = timeout}};
        addArguments(call, args, kwargs);
        return make(std::move(call));
      },
      py::arg("worker"), py::arg("name"), py::arg("args"), py::arg("kwargs"), py::arg("method"),
      py::arg("version"), py::arg("timeout"));
}

}  // namespace

void weft::ops::bind(py::module_& module) {
  module.attr("_NAMES_MARK") = kNamesMark;
  bindPublishing(module);
  bindCall(module, "call_published", [](Call what) {
    what.with_names = &withNames;
    return torch::jit::toPyObject(without_gil([&] { return call(std::move(what)); }));
  });
  bindCall(module, "call_published_async", [](Call what) {
    what.with_names = &withNames;
    auto future = without_gil([&] { return callAsync(std::move(what)); });
    return std::make_shared<torch::jit::PythonFutureWrapper>(std::move(future));
  });
  bindCall(module, "call_published_remote", [](Call what) {
    auto rref = without_gil([&] { return callRemote(std::move(what)); });
    return torch::jit::toPyObject(c10::static_intrusive_pointer_cast<c10::RRefInterface>(rref));
  });
}
