#include "pipe/python/bindings.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "pipe/engine/pipeline.h"
#include "pipe/python/caller_context.h"
#include "pipe/python/stage.h"
#include "pipe/python/values.h"
#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace weft::pipe {

namespace {

thread_local PyThreadState* t_python = nullptr;

// A worker's thread keeps one Python thread state for its life: making one costs more than a short
// stage. The GIL is released while a thread waits for others.
ThreadHooks threadHooks() {
  ThreadHooks hooks;
  hooks.started = [] {
    (void)PyGILState_Ensure();
    t_python = PyEval_SaveThread();
  };
  hooks.ending = [] {
    if (interpreterEnds()) return;
    PyEval_RestoreThread(t_python);
    // The thread state may hold graphs, whose end takes the GIL again. That must not happen inside
    // of PyGILState_Release: pybind11 would end the state a second time.
    if (PyObject* const locals = PyThreadState_GetDict()) PyDict_Clear(locals);
    PyGILState_Release(PyGILState_UNLOCKED);
  };
  hooks.while_waiting = [](const std::function<void()>& join) {
    if (!interpreterEnds() && PyGILState_Check() != 0) {
      const py::gil_scoped_release no_gil;
      join();
    } else {
      join();
    }
  };
  return hooks;
}

// Whether this thread runs inside a torch.utils.checkpoint that is not reentrant: its hooks count
// the saved tensors, and are of no use after the forward.
bool isInsideCheckpoint() {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  if (!hooks) return false;
  const py::handle pack = hooks->first.ptr(getPyInterpreter());
  const py::object module = py::getattr(pack, "__module__", py::none());
  return py::isinstance<py::str>(module) && module.cast<std::string>() == "torch.utils.checkpoint";
}

// Whether a torch function mode is on, other than that of torch.set_default_device, which has no
// state that threads could share.
bool hasFunctionModes() {
  using at::impl::PythonTorchFunctionTLS;
  const std::int64_t modes = PythonTorchFunctionTLS::stack_len();
  if (modes == 0) return false;
  const py::object device = py::module_::import("torch.utils._device").attr("DeviceContext");
  for (std::int64_t k = 0; k < modes; ++k) {
    const py::handle mode = PythonTorchFunctionTLS::get_stack_at(k)->ptr(getPyInterpreter());
    if (!py::isinstance(mode, device)) return true;
  }
  return false;
}

class Engine {
 public:
  Engine(const std::vector<py::object>& modules, std::vector<c10::Device> devices,
         const std::vector<std::pair<std::size_t, std::size_t>>& routes, const py::object& skips,
         py::type no_chunk)
      : no_chunk_(std::move(no_chunk)) {
    std::vector<std::shared_ptr<Stage>> stages;
    for (const py::object& module : modules) {
      stages.push_back(std::make_shared<PythonStage>(module, skips));
    }
    std::vector<SkipRoute> skip_routes;
    for (const auto& [from, to] : routes)
      skip_routes.push_back({from, to});
    pipeline_ = std::make_unique<Pipeline>(std::move(stages), std::move(devices),
                                           std::move(skip_routes), threadHooks());
  }

  py::object run(const py::tuple& arguments, std::size_t chunks, bool training,
                 Checkpoint checkpoint) {
    HANDLE_TH_ERRORS
    ForwardInput input;
    Structure structure{Structure::Kind::kTuple, {}, {}};
    for (const py::handle argument : arguments) {
      const bool whole =
          Py_TYPE(argument.ptr()) == reinterpret_cast<PyTypeObject*>(no_chunk_.ptr());
      const bool chunked = THPVariable_Check(argument.ptr());
      const py::object value =
          whole ? argument.attr("tensor") : py::reinterpret_borrow<py::object>(argument);
      structure.parts.push_back(addPart(value, input.tensors));
      input.how.resize(input.tensors.size(), chunked ? Scatter::kChunk : Scatter::kReplicate);
    }
    const bool single =
        structure.parts.size() == 1 && structure.parts[0].kind == Structure::Kind::kTensor;
    input.structure = shared(std::move(single ? structure.parts[0] : structure));
    input.chunks = chunks;
    input.training = training;
    input.checkpoint = checkpoint;
    // A cached weight belongs to all micro-batches' graphs.
    input.in_plain_order = cachesParametrizations() || isInsideCheckpoint();
    input.in_order = hasFunctionModes();
    const CallerContext context;
    Batch result;
    {
      const py::gil_scoped_release no_gil;
      result = pipeline_->run(std::move(input));
    }
    return toPython(result);
    END_HANDLE_TH_ERRORS_PYBIND
  }

  py::list stopRecording() {
    static const char* const kinds[] = {"forward", "recompute", "backward", "copy"};
    py::list events;
    for (const Event& event : pipeline_->stopRecording()) {
      events.append(py::make_tuple(event.stage, event.micro_batch,
                                   kinds[static_cast<std::size_t>(event.kind)], event.begin_ns,
                                   event.end_ns, event.thread));
    }
    return events;
  }

  Pipeline& pipeline() { return *pipeline_; }

 private:
  const py::type no_chunk_;
  std::unique_ptr<Pipeline> pipeline_;
};

const StageContext& contextNow() {
  const StageContext* const context = currentStage();
  TORCH_CHECK(context != nullptr && context->skips != nullptr,
              "skip tensors move only while a stage of a Pipe runs");
  return *context;
}

void bindContext(py::module_& pipe) {
  pipe.def(
      "is_checkpointing", [] { return currentStage() != nullptr && currentStage()->checkpointing; },
      "True in a stage's forward that keeps no graph, because it will be run again.");
  pipe.def(
      "is_recomputing", [] { return currentStage() != nullptr && currentStage()->recomputing; },
      "True in a stage's forward that is run again for the backward.");
  pipe.def("is_run_again", &isRunAgain,
           "True where a forward is part of a backward or of a recomputation, on whatever thread "
           "it runs.");
  pipe.def(
      "micro_batch",
      []() -> std::optional<std::tuple<std::size_t, std::size_t, std::uint64_t>> {
        const StageContext* const now = currentStage();
        if (now == nullptr) return std::nullopt;
        return std::tuple(now->micro_batch, now->micro_batches, now->mini_batch);
      },
      "(index, count, number of the mini-batch) of the micro-batch that runs on this thread; None "
      "outside of a stage.");
  pipe.def("current_skips", &currentSkips,
           "The skip connections of the Pipe whose stage runs on this thread; None outside.");
  pipe.def(
      "stash",
      [](std::size_t route, const std::optional<at::Tensor>& tensor) {
        contextNow().skips->put(route, tensor.value_or(at::Tensor()));
      },
      py::arg("route"), py::arg("tensor"), "Sends a tensor along a skip connection.");
  pipe.def(
      "pop",
      [](std::size_t route) -> std::optional<at::Tensor> {
        std::optional<at::Tensor> found = contextNow().skips->take(route);
        TORCH_CHECK(found.has_value(), "skip connection ", route, " has not been stashed");
        return found->defined() ? found : std::nullopt;
      },
      py::arg("route"), "Takes the tensor that came along a skip connection.");
}

// By this guard torch.compile works with CUDA tensors' shapes on a machine without a GPU. As
// torch._C._ensureCUDADeviceGuardSet(): where torch has CUDA and the machine has no GPU, puts a
// guard that does nothing in CUDA's place. torch 2.11 owns that guard by the thread that asks first
// and leaves it in the registry when the thread ends, for any later user to crash on; this one
// stays. Any thread.
void ensureCudaDeviceGuard() {
  auto& registered =
      c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)];
  const c10::impl::DeviceGuardImplInterface* const now = registered.load();
  if (now == nullptr || now->deviceCount() != 0) return;
  static const auto* const guard = new c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>();
  registered.store(guard);
}

}  // namespace

void bind(py::module_& module) {
  watchGeneratorMethods();
  py::module_ pipe = module.def_submodule("pipe", "The pipeline engine.");
  py::enum_<Checkpoint>(pipe, "Checkpoint")
      .value("never", Checkpoint::kNever)
      .value("except_last", Checkpoint::kExceptLast)
      .value("always", Checkpoint::kAlways);
  py::enum_<Threading>(pipe, "Threading")
      .value("auto", Threading::kAuto)
      .value("threads", Threading::kThreads)
      .value("inline", Threading::kInline);
  py::class_<Engine>(pipe, "Engine", "Runs mini-batches through a chain of modules.")
      .def(py::init<const std::vector<py::object>&, std::vector<c10::Device>,
                    const std::vector<std::pair<std::size_t, std::size_t>>&, const py::object&,
                    py::type>(),
           py::arg("modules"), py::arg("devices"), py::arg("routes"), py::arg("skips"),
           py::arg("no_chunk"))
      .def("run", &Engine::run, py::arg("arguments"), py::arg("chunks"), py::arg("training"),
           py::arg("checkpoint"))
      .def(
          "rest", [](Engine& self) { self.pipeline().rest(); },
          "Ends the threads; the next mini-batch starts them again.")
      .def_property_readonly("threads", [](Engine& self) { return self.pipeline().threads(); })
      .def(
          "set_threading",
          [](Engine& self, Threading threading) { self.pipeline().setThreading(threading); },
          py::arg("threading"), "For tests: where tasks run, whatever would be faster.")
      .def("start_recording", [](Engine& self) { self.pipeline().startRecording(); })
      .def("stop_recording", &Engine::stopRecording);
  pipe.def("ensure_cuda_device_guard", &ensureCudaDeviceGuard,
           "torch._C._ensureCUDADeviceGuardSet(), for threads that end.");
  bindContext(pipe);
  bindWorkers(pipe);
  bindWorkerRun(pipe);
}

}  // namespace weft::pipe
