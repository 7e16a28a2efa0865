#include "jit_ops/cpp_api/pipeline_values.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/import.h>

#include <sstream>
#include <vector>

#include "jit_ops/values/coerce.h"
#include "pipe/scripted/script_loss.h"

namespace weft::ops {

namespace {

// What torch.jit.save wrote, as a tensor of bytes.
std::string bytesOf(const at::Tensor& saved) {
  TORCH_CHECK(saved.scalar_type() == at::kByte && saved.dim() == 1 && saved.is_contiguous(),
              "a module must be a contiguous tensor of bytes");
  return {reinterpret_cast<const char*>(saved.const_data_ptr()),
          static_cast<std::size_t>(saved.numel())};
}

// Targets as the loss declares its second argument.
std::vector<at::IValue> targetsOf(const at::IValue& targets, const torch::jit::Module& criterion) {
  const auto& arguments = criterion.get_method("forward").function().getSchema().arguments();
  TORCH_CHECK(arguments.size() > 2, "the loss must take an output and a target");
  std::vector<at::IValue> found = targets.toListRef().vec();
  for (at::IValue& target : found) {
    TORCH_CHECK(coerce(target, arguments[2].type()), "the loss takes a target of type ",
                arguments[2].type()->annotation_str(), ", got ", target.type()->annotation_str());
  }
  return found;
}

// When each task started and ended.
at::Tensor timesOf(const pipe::ScriptWorkerRun& run) {
  std::vector<std::int64_t> times;
  for (const auto& record : run.records()) {
    times.push_back(record->started);
    times.push_back(record->ended);
  }
  return at::tensor(times, at::kLong).reshape({-1, 2});
}

at::IValue gradientsOf(const pipe::ScriptWorkerRun& run) {
  c10::impl::GenericDict found(c10::IntType::get(), c10::AnyType::get());
  for (const auto& [micro_batch, gradients] : run.firstGradients()) {
    c10::impl::GenericList list(c10::OptionalType::ofTensor());
    for (const at::Tensor& one : gradients)
      list.push_back(one.defined() ? at::IValue(one) : at::IValue());
    found.insert(micro_batch, std::move(list));
  }
  return found;
}

}  // namespace

std::map<std::int64_t, pipe::ScriptLayers> stagesOf(const at::IValue& stages,
                                                    const at::IValue& saved) {
  std::vector<torch::jit::Module> modules;
  for (const at::Tensor& one : saved.toTensorVector()) {
    std::istringstream file(bytesOf(one));
    modules.push_back(torch::jit::load(file));
  }
  std::map<std::int64_t, pipe::ScriptLayers> found;
  for (const at::IValue& stage : stages.toListRef()) {
    const auto& parts = stage.toTupleRef().elements();
    for (const at::IValue& layer : parts.at(1).toListRef()) {
      const auto& named = layer.toTupleRef().elements();
      const auto place = static_cast<std::size_t>(named.at(1).toInt());
      found[parts.at(0).toInt()].push_back({named.at(0).toStringRef(), modules.at(place)});
    }
  }
  return found;
}

pipe::WorkerJob jobOf(const std::vector<at::IValue>& args) {
  pipe::WorkerJob job;
  job.mini_batch = args[1].toInt();
  for (const at::IValue& task : args[2].toListRef()) {
    const auto& parts = task.toTupleRef().elements();
    job.tasks.push_back(
        {pipe::kindNamed(parts.at(0).toStringRef()), parts.at(1).toInt(), parts.at(2).toInt()});
  }
  for (const at::IValue& one : args[3].toListRef())
    job.recompute.push_back(one.toBool());
  job.trains = args[4].toBool();
  if (args[5].isTensor()) {
    job.criterion = pipe::loadLoss(bytesOf(args[5].toTensor()));
    job.targets = targetsOf(args[6], *job.criterion);
  }
  job.weights = args[7].toDoubleVector();
  return job;
}

at::IValue outcomeOf(const pipe::ScriptWorkerRun* run, const std::string& error) {
  if (run == nullptr)
    return c10::ivalue::Tuple::create(at::IValue(), error, at::IValue(), at::IValue());
  return c10::ivalue::Tuple::create(run->loss(), error, timesOf(*run), gradientsOf(*run));
}

StateDicts toDicts(const pipe::ScriptOptimizer::State& state) {
  StateDicts found;
  for (const auto& [name, kept] : state) {
    pipe::StateDict one;
    for (const auto& [what, tensor] : kept)
      one.insert(what, tensor);
    found.insert(name, std::move(one));
  }
  return found;
}

}  // namespace weft::ops
