#include "pipe/python/bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "pipe/python/gil.h"
#include "pipe/scripted/script_loss.h"
#include "pipe/scripted/script_worker_run.h"
#include "third_party/torch/interpreter.h"

namespace py = pybind11;

namespace weft::pipe {

namespace {

using Task = std::tuple<std::string, std::int64_t, std::int64_t>;  // as Python's Task
using Places = std::vector<std::vector<std::string>>;
using Stages = std::map<std::int64_t, std::vector<torch::jit::Module>>;  // the layers of each

// As a call from Python converts them; throws what that raises. With the GIL.
Values converted(const py::tuple& arguments, const c10::FunctionSchema& schema) {
  // In the place of self, which a Method adds.
  Values stack = torch::jit::createStackForSchema(schema, torch::jit::tuple_slice(arguments),
                                                  py::kwargs(), at::IValue());
  stack.erase(stack.begin());
  return stack;
}

py::tuple asTuple(const py::object& value) {
  if (py::isinstance<py::tuple>(value)) return value;
  return py::make_tuple(value);
}

// Values as weft/pipe/_workers/parcels.py packs them.
class PickledValues final : public PythonValues {
 public:
  // With the GIL.
  PickledValues(py::object pack, py::object unpack)
      : pack_(std::move(pack)), unpack_(std::move(unpack)) {}
  ~PickledValues() override {
    dropWithGil(pack_);
    dropWithGil(unpack_);
  }

  Values unpack(const Parcel& parcel, const c10::FunctionSchema& schema) override {
    return withGil([&] { return converted(asTuple(value(parcel)), schema); });
  }

  Tensors unpackGradients(const Parcel& parcel) override {
    return withGil([&] {
      Tensors gradients;
      for (const py::handle one : value(parcel))
        gradients.push_back(one.is_none() ? at::Tensor() : one.cast<at::Tensor>());
      return gradients;
    });
  }

  Parcel pack(const at::IValue& value) override {
    return withGil([&]() -> Parcel {
      const py::object packed = pack_(torch::jit::toPyObject(value), /*forward=*/true);
      auto [layout, tensors] = packed.cast<std::tuple<std::string, Tensors>>();
      return {std::move(layout), std::move(tensors)};
    });
  }

  Values convert(Values arguments, const c10::FunctionSchema& schema) override {
    return withGil([&] {
      py::tuple objects(arguments.size());
      for (std::size_t at = 0; at < arguments.size(); ++at)
        objects[at] = torch::jit::toPyObject(arguments[at]);
      return converted(objects, schema);
    });
  }

 private:
  py::object value(const Parcel& parcel) const {
    return unpack_(py::make_tuple(py::bytes(parcel.layout), parcel.tensors));
  }

  py::object pack_, unpack_;
};

// The run and what it needs of Python.
struct Run {
  explicit Run(const py::tuple& codec) : python(codec[0], codec[1]) {}

  PickledValues python;
  std::optional<ScriptWorkerRun> run;
};

std::unique_ptr<Run> makeRun(const std::tuple<std::string, std::string, std::string>& names,
                             Places places, Stages stages, std::int64_t mini_batch,
                             const std::vector<Task>& tasks, std::vector<bool> recompute,
                             bool trains, std::optional<torch::jit::Module> criterion,
                             const py::list& targets, std::vector<double> weights,
                             const py::tuple& codec) {
  WorkerPart part;
  std::tie(part.pipeline, part.worker, part.driver) = names;
  part.places = std::move(places);
  part.stages = std::move(stages);
  WorkerJob job;
  job.mini_batch = mini_batch;
  for (const auto& [kind, stage, micro_batch] : tasks)
    job.tasks.push_back({kindNamed(kind), stage, micro_batch});
  job.recompute = std::move(recompute);
  job.trains = trains;
  job.weights = std::move(weights);
  job.criterion = std::move(criterion);
  if (job.criterion) {
    // The output's place is another's: only the target is converted.
    const auto& schema = job.criterion->get_method("forward").function().getSchema();
    TORCH_CHECK(schema.arguments().size() > 2, "the loss must take an output and a target");
    for (const py::handle target : targets)
      job.targets.push_back(torch::jit::toIValue(target, schema.arguments()[2].type()));
  }
  auto made = std::make_unique<Run>(codec);
  made->run.emplace(std::move(part), std::move(job), &made->python);
  return made;
}

// `values`: by micro-batch, the first stage's inputs; `stage`: its first layer.
void give(Run& self, const py::dict& values, const torch::jit::Module& layer) {
  const auto& schema = layer.get_method("forward").function().getSchema();
  for (const auto& [number, value] : values) {
    self.run->give(number.cast<std::int64_t>(),
                   {converted(asTuple(py::reinterpret_borrow<py::object>(value)), schema)});
  }
}

void run(Run& self, const py::object& abandoned) {
  HANDLE_TH_ERRORS
  std::optional<std::string> reason;
  {
    const py::gil_scoped_release no_gil;
    try {
      self.run->run();
    } catch (const Abandoned& error) {
      reason = error.what();
    }
  }
  if (!reason) return;
  PyErr_SetString(abandoned.ptr(), reason->c_str());
  throw py::error_already_set();
  END_HANDLE_TH_ERRORS_PYBIND
}

void bindTaskRecord(py::module_& pipe) {
  py::class_<TaskRecord, std::shared_ptr<TaskRecord>>(
      pipe, "TaskRecord", "When a task ran: nanoseconds of CLOCK_MONOTONIC, 0 for not yet.")
      .def_readonly("mini_batch", &TaskRecord::mini_batch)
      .def_property_readonly("stage", [](const TaskRecord& self) { return self.task.stage; })
      .def_property_readonly("micro_batch",
                             [](const TaskRecord& self) { return self.task.micro_batch; })
      .def_property_readonly("kind", [](const TaskRecord& self) { return nameOf(self.task.kind); })
      .def_property_readonly("created", [](const TaskRecord& self) { return self.created.load(); })
      .def_property_readonly("started", [](const TaskRecord& self) { return self.started.load(); })
      .def_property_readonly("ended", [](const TaskRecord& self) { return self.ended.load(); });
}

void bindLoss(py::module_& pipe) {
  pipe.def(
      "load_loss", [](const py::bytes& saved) { return loadLoss(saved); }, py::arg("saved"),
      "A copy of the module that torch.jit.save wrote; the last one is not compiled again.");
  pipe.def(
      "save_loss", [](const torch::jit::Module& loss) { return py::bytes(*saveLoss(loss)); },
      py::arg("loss"), "What torch.jit.save writes; the last one, unchanged, not again.");
}

}  // namespace

void bindWorkerRun(py::module_& pipe) {
  bindTaskRecord(pipe);
  bindLoss(pipe);
  py::class_<Run>(pipe, "ScriptWorkerRun",
                  "One mini-batch at one worker whose stages are all TorchScript.")
      .def(py::init(&makeRun), py::arg("names"), py::arg("places"), py::arg("stages"),
           py::arg("mini_batch"), py::arg("tasks"), py::arg("recompute"), py::arg("trains"),
           py::arg("criterion"), py::arg("targets"), py::arg("weights"), py::arg("codec"),
           "`names` of the pipeline, this worker and the driver; `codec`: pack and unpack of "
           "weft.pipe._workers.parcels.")
      .def("give", &give, py::arg("values"), py::arg("layer"),
           "The first stage's inputs, by micro-batch, for its first layer.")
      .def("run", &run, py::arg("abandoned"),
           "All tasks. Raises `abandoned`: the mini-batch was over. RuntimeError: a task failed.")
      .def_property_readonly("records", [](const Run& self) { return self.run->records(); })
      .def_property_readonly("loss", [](const Run& self) { return self.run->loss(); })
      .def_property_readonly(
          "output", [](const Run& self) { return torch::jit::toPyObject(self.run->output()); })
      .def_property_readonly("first_gradients",
                             [](const Run& self) { return self.run->firstGradients(); });
}

}  // namespace weft::pipe
