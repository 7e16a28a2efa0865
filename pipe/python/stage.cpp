#include "pipe/python/stage.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "pipe/python/caller_context.h"
#include "pipe/python/gil.h"
#include "pipe/python/module_tensors.h"
#include "pipe/python/values.h"
#include "third_party/torch/interpreter.h"

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

bool isTrue(const py::object& value) { return PyObject_IsTrue(value.ptr()) != 0; }

// Null if there are no layers, or one is not TorchScript.
std::shared_ptr<ScriptStage> scripted(const py::object& layers) {
  const py::object script = py::module_::import("torch.jit").attr("ScriptModule");
  std::vector<torch::jit::Module> modules;
  for (const py::handle layer : layers) {
    if (!py::isinstance(layer, script)) return nullptr;
    modules.push_back(layer.attr("_c").cast<torch::jit::Module>());
  }
  if (modules.empty()) return nullptr;
  return std::make_shared<ScriptStage>(std::move(modules));
}

bool areSame(const py::list& one, const py::list& other) {
  return one.size() == other.size() &&
         std::equal(one.begin(), one.end(), other.begin(),
                    [](py::handle layer, py::handle now) { return layer.is(now); });
}

// Whether a layer is what torch.compile(layer) gives, or layer.compile() has been called.
bool hasCompiled(const py::object& module) {
  for (const py::handle layer : module.attr("modules")()) {
    if (py::hasattr(layer, "dynamo_ctx")) return true;
    if (!py::getattr(layer, "_compiled_call_impl", py::none()).is_none()) return true;
  }
  return false;
}

bool hasGlobalHooks() {
  return isTrue(py::module_::import("torch.nn.modules.module").attr("_has_any_global_hook")());
}

// A weight that torch.nn.utils.parametrize.cached() keeps belongs to the graph of its first user.
void refuseCachedParametrizations() {
  TORCH_CHECK(!cachesParametrizations(),
              "a Pipe has to run stages again for the backward, which it cannot do inside of "
              "torch.nn.utils.parametrize.cached(): call backward() outside of it, or run the "
              "forward inside of it as well.");
}

// Before what a layer raised leaves the thread, ends what torch.utils.checkpoint left open there.
[[noreturn]] void throwLayersError() {
  py::error_already_set error;
  if (error.trace()) {
    py::module_::import("weft._torch.checkpoints")
        .attr("end_checkpoints")(error.value(), error.trace());
  }
  error.restore();
  throwPythonError();
}

}  // namespace

void throwPythonError() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PythonStage::PythonStage(py::object module, py::object skips)
    : module_(std::move(module)),
      skips_(std::move(skips)),
      compiled_(hasCompiled(module_)),
      layers_(py::list(module_)),
      script_(scripted(layers_)) {}

PythonStage::~PythonStage() {
  dropWithGil(layers_);
  dropWithGil(module_);
  dropWithGil(skips_);
}

void PythonStage::prepare() {
  if (script()) withGil([&] { lookAtLayers(); });
}

void PythonStage::lookAtLayers() {
  py::list layers(module_);
  if (!areSame(layers, layers_)) {
    std::shared_ptr<ScriptStage> now = scripted(layers);
    layers_ = layers;
    const std::lock_guard lock(script_mutex_);  // another caller's mini-batch may run it
    script_.swap(now);
  }
  const py::object has_hooks = py::module_::import("weft.pipe._partition").attr("has_hooks");
  bool hooked = hasGlobalHooks() || isTrue(has_hooks(module_));
  for (const py::handle layer : layers)
    hooked |= isTrue(has_hooks(layer));
  hooked_.store(hooked, std::memory_order_relaxed);
}

Batch PythonStage::forward(const Batch& input) {
  const auto script = this->script();
  if (script && !isHooked()) return script->forward(input);
  return withGil([&] { return call(input); });
}

Batch PythonStage::forwardAgain(const Batch& input, const StageTensors& then) {
  const auto script = this->script();
  if (script && !isHooked()) return script->forwardAgain(input, then);
  if (script) return Stage::forwardAgain(input, then);
  return withGil([&] {
    refuseCachedParametrizations();
    const TensorSlotGuard guard(static_cast<const ModuleTensors&>(then).slots);
    return call(input);
  });
}

Batch PythonStage::call(const Batch& input) {
  const SkipsGuard guard(skips_.ptr());
  const StageVariables variables;
  const py::tuple arguments = toArguments(input);
  const auto result =
      py::reinterpret_steal<py::object>(PyObject_Call(module_.ptr(), arguments.ptr(), nullptr));
  if (!result) throwLayersError();
  return toBatch(result);
}

std::shared_ptr<StageTensors> PythonStage::tensors() {
  return withGil([&]() -> std::shared_ptr<StageTensors> { return ModuleTensors::of(module_); });
}

void PythonStage::update(StageTensors& tensors) {
  withGil([&] { static_cast<ModuleTensors&>(tensors).update(); });
}

std::vector<at::Tensor> PythonStage::parametersAndBuffers() { return tensors()->tensors; }

bool cachesParametrizations() {
  static PyObject* const module =
      py::object(py::module_::import("torch.nn.utils.parametrize")).release().ptr();
  return isTrue(py::handle(module).attr("_cache_enabled"));
}

py::object currentSkips() {
  return t_skips == nullptr ? py::none() : py::reinterpret_borrow<py::object>(t_skips);
}

}  // namespace weft::pipe
