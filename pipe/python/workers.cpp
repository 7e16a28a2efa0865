#include "pipe/python/bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <tuple>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/data/memory.h"
#include "pipe/stage/output_sample.h"
#include "pipe/stage/stage_context.h"
#include "pipe/workers/arrivals.h"
#include "pipe/workers/deliveries.h"
#include "pipe/workers/distributed_gradients.h"
#include "pipe/workers/repeated_draws.h"
#include "pipe/workers/split_backward.h"
#include "pipe/workers/stage_errors.h"

namespace py = pybind11;

namespace weft::pipe {

namespace {

using Tensors = std::vector<at::Tensor>;
using Key = std::tuple<std::int64_t, Sent, std::int64_t, std::int64_t>;

ArrivalKey keyOf(const Key& key) {
  const auto& [mini_batch, what, stage, micro_batch] = key;
  return {mini_batch, what, stage, micro_batch};
}

// Ctrl-C is raised as Python raised it.
std::optional<std::tuple<py::bytes, Tensors>> take(Arrivals& self, const Key& key,
                                                   double patience) {
  HANDLE_TH_ERRORS
  std::optional<Parcel> parcel;
  {
    const py::gil_scoped_release no_gil;
    parcel = self.take(keyOf(key), std::chrono::milliseconds(static_cast<int>(patience * 1e3)));
  }
  if (!parcel) return std::nullopt;
  return std::tuple(py::bytes(parcel->layout), std::move(parcel->tensors));
  END_HANDLE_TH_ERRORS_PYBIND
}

// What the end of a run throws is raised with its message alone.
void endRun(RepeatedDraws& self, const py::object& type, const py::args&) {
  HANDLE_TH_ERRORS
  if (type.is_none()) {
    self.end();
  } else {
    self.leave();
  }
  END_HANDLE_TH_ERRORS_PYBIND
}

// `with StageRun(…):` a stage of this worker runs, which asks as in a pipeline of one process.
class StageRun {
 public:
  explicit StageRun(const StageContext& context) : context_(context) {}
  void enter() { guard_.emplace(context_); }
  void exit(const py::args&) { guard_.reset(); }

 private:
  const StageContext context_;
  std::optional<StageContextGuard> guard_;
};

std::unique_ptr<StageRun> makeStageRun(std::size_t stage, std::size_t micro_batch,
                                       std::size_t micro_batches, std::uint64_t mini_batch,
                                       bool checkpointing, bool recomputing) {
  return std::make_unique<StageRun>(StageContext{.stage = stage,
                                                 .micro_batch = micro_batch,
                                                 .micro_batches = micro_batches,
                                                 .checkpointing = checkpointing,
                                                 .recomputing = recomputing,
                                                 .mini_batch = mini_batch});
}

// The places of those that may have common elements, in pairs.
std::vector<std::pair<std::size_t, std::size_t>> overlapping(const Tensors& tensors) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t k = 1; k < tensors.size(); ++k) {
    for (std::size_t j = 0; j < k; ++j) {
      if (mayOverlap(tensors[j], tensors[k])) found.emplace_back(j, k);
    }
  }
  return found;
}

void bindDistributedGradients(py::module_& pipe) {
  py::enum_<BackwardKind>(pipe, "BackwardKind")
      .value("all", BackwardKind::kAll)
      .value("inputs", BackwardKind::kInputs)
      .value("distributed", BackwardKind::kDistributed);
  pipe.def("backward_kind", &backwardKind, py::arg("leaf"),
           "In a node's backward: what runs it. Only this node leads to `leaf`.");
  pipe.def("current_context", &currentContext,
           "The number of the distributed autograd context that this thread is in, or None.");
  pipe.def("join_context", &joinContext, py::arg("context"), py::arg("workers"),
           py::call_guard<py::gil_scoped_release>(),
           "The workers take part in the distributed backward that runs, in this context.");
  pipe.def("leaves_of", &leavesOf, py::arg("outputs"),
           "The leaves that want gradients and that the outputs depend on.");
  pipe.def("add_to_context", &addToContext, py::arg("context"), py::arg("leaves"),
           py::arg("gradients"), py::call_guard<py::gil_scoped_release>(),
           "Adds the leaves' gradients to this worker's distributed autograd context.");
}

void bindStageErrors(py::module_& pipe) {
  pipe.attr("CHANGES_ITS_INPUT") = stage_errors::kChangesItsInput;
  pipe.attr("CHANGES_ONE_OF_SEVERAL") = stage_errors::kChangesOneOfSeveral;
  pipe.attr("INPUT_HAS_CHANGED") = stage_errors::kInputHasChanged;
  pipe.attr("LEAVES_GRADIENTS_OFF") = stage_errors::kLeavesGradientsOff;
  pipe.attr("HAS_NO_GRAPH") = stage_errors::kHasNoGraph;
  pipe.attr("A_LEAF") = stage_errors::kALeaf;
  pipe.attr("LEAF_IS_INPUT") = stage_errors::kLeafIsInput;
}

}  // namespace

void bindWorkers(py::module_& pipe) {
  bindDistributedGradients(pipe);
  bindStageErrors(pipe);
  py::enum_<Sent>(pipe, "Sent")
      .value("input", Sent::kInput)
      .value("gradients", Sent::kGradients)
      .value("skip", Sent::kSkip)
      .value("skip_gradient", Sent::kSkipGradient)
      .value("sums", Sent::kSums);
  py::class_<Arrivals, std::shared_ptr<Arrivals>>(
      pipe, "Arrivals", "What other workers have sent here for the mini-batches of one pipeline.")
      .def("take", &take, py::arg("key"), py::arg("patience"),
           "(layout, tensors) of what came for (mini-batch, what, stage, micro-batch); None after "
           "`patience` seconds. RuntimeError: the mini-batch is over.")
      .def("end", &Arrivals::end, py::arg("mini_batch"), py::arg("reason"),
           "This mini-batch and those before it are over.")
      .def("is_over", &Arrivals::isOver, py::arg("mini_batch"))
      .def("__len__", &Arrivals::size);
  pipe.def("open_arrivals", &openArrivals, py::arg("pipeline"));
  pipe.def("no_stage_at", &noStageAt, py::arg("worker"));
  pipe.def("close_arrivals", &closeArrivals, py::arg("pipeline"), py::arg("own"));
  py::class_<Deliveries>(pipe, "Deliveries", "What this worker sends in one mini-batch.")
      .def(py::init<std::string>(), py::arg("pipeline"))
      .def(
          "send",
          [](Deliveries& self, const std::string& worker, const Key& key, std::string layout,
             Tensors tensors) {
            self.send(worker, keyOf(key), {std::move(layout), std::move(tensors)});
          },
          py::arg("worker"), py::arg("key"), py::arg("layout"), py::arg("tensors"),
          py::call_guard<py::gil_scoped_release>())
      .def("wait", torch::wrap_pybind_function_no_gil(&Deliveries::wait),
           "Until all has arrived. RuntimeError: something did not.");
  pipe.def("ping", torch::wrap_pybind_function_no_gil(&ping), py::arg("worker"),
           "Waits until the worker has answered. RuntimeError: it is lost.");
  pipe.def("share_storage", &shareStorage, py::arg("tensors"),
           "Whether two of the tensors are in one storage; of sparse ones, their values.");
  pipe.def("overlapping", &overlapping, py::arg("tensors"),
           "The places, in pairs, of those that may have common elements: where the strides or the "
           "types differ, of those that begin before the other's end.");
  pipe.def("next_mini_batch_number", &nextMiniBatchNumber,
           "What micro_batch() tells of a mini-batch; no two have the same.");
  py::class_<StageRun>(pipe, "StageRun", "A stage of this worker runs on this thread meanwhile.")
      .def(py::init(&makeStageRun), py::arg("stage"), py::arg("micro_batch"),
           py::arg("micro_batches"), py::arg("mini_batch"), py::arg("checkpointing") = false,
           py::arg("recomputing") = false)
      .def("__enter__", &StageRun::enter)
      .def("__exit__", &StageRun::exit);
  py::class_<RepeatedDraws>(pipe, "RepeatedDraws",
                            "`with` it, a stage draws the random numbers of the first time again.")
      .def(py::init([](const std::string& device, std::size_t stage) {
             return std::make_unique<RepeatedDraws>(c10::Device(device), stage);
           }),
           py::arg("device"), py::arg("stage"))
      .def("__enter__", &RepeatedDraws::begin)
      .def("__exit__", &endRun, "RuntimeError: the numbers were others.");
  pipe.def(
      "alias", &aliasOf, py::arg("tensor"),
      "The same with a node between, so that it may be changed in place where a leaf may not.");
  py::class_<OutputSample>(pipe, "OutputSample", "A few elements of what a stage gave.")
      .def(py::init<const Tensors&>(), py::arg("output"))
      .def("check_repeated", torch::wrap_pybind_function(&OutputSample::checkRepeated),
           py::arg("output"), py::arg("stage"),
           "RuntimeError: the stage gave something else when it ran again.");
  py::class_<SplitBackward>(pipe, "SplitBackward", "A backward in two halves, each run once.")
      .def(py::init<const Tensors&, Tensors>(), py::arg("outputs"), py::arg("inputs"))
      .def("is_split", &SplitBackward::isSplit)
      .def("input_gradients", torch::wrap_pybind_function_no_gil(&SplitBackward::inputGradients),
           py::arg("gradients"),
           "Takes those of the outputs; None for an input that they do not depend on.")
      .def("accumulate_parameter_gradients",
           torch::wrap_pybind_function_no_gil(&SplitBackward::accumulateParameterGradients));
}

}  // namespace weft::pipe
