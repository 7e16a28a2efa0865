#include "pipe/pipe.h"

#include <c10/util/irange.h>

#include "pipe/data/script_batch.h"
#include "pipe/stage/script_stage.h"

namespace weft {

namespace {

using pipe::Batch;
using pipe::Stage;
using pipe::Structure;

class ModuleStage final : public Stage {
 public:
  explicit ModuleStage(torch::nn::AnyModule module) : module_(std::move(module)) {}
  Batch forward(const Batch& input) override {
    TORCH_CHECK(!input.structure, "a stage of torch::nn modules takes one tensor");
    return {{module_.forward<at::Tensor>(input.tensors.at(0))}, nullptr};
  }
  std::vector<at::Tensor> parametersAndBuffers() override {
    std::vector<at::Tensor> found = module_.ptr()->parameters();
    for (at::Tensor& buffer : module_.ptr()->buffers())
      found.push_back(std::move(buffer));
    return found;
  }

 private:
  torch::nn::AnyModule module_;
};

c10::Device deviceOf(const std::vector<at::Tensor>& parameters, std::size_t stage) {
  if (parameters.empty()) return c10::kCPU;
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.device() == parameters[0].device(), "module ", stage,
                      " has parameters or buffers on ", parameters[0].device(), " and on ",
                      parameter.device(), "; a stage is on one device");
  }
  return parameters[0].device();
}

}  // namespace

Pipe::Pipe(torch::nn::Sequential modules, PipeOptions options)
    : options_(options), sequential_(std::move(modules)) {
  std::vector<std::shared_ptr<Stage>> stages;
  for (torch::nn::AnyModule& module : *sequential_) {
    stages.push_back(std::make_shared<ModuleStage>(module));
  }
  build(std::move(stages));
}

Pipe::Pipe(std::vector<torch::jit::Module> modules, PipeOptions options)
    : options_(options), scripts_(std::move(modules)) {
  std::vector<std::shared_ptr<Stage>> stages;
  for (const torch::jit::Module& module : scripts_) {
    stages.push_back(std::make_shared<pipe::ScriptStage>(std::vector{module}));
  }
  build(std::move(stages));
}

void Pipe::build(std::vector<std::shared_ptr<Stage>> stages) {
  TORCH_CHECK_VALUE(options_.chunks > 0, "number of chunks must be positive, got ",
                    options_.chunks);
  TORCH_CHECK_VALUE(!stages.empty(), "a Pipe needs at least one module");
  for (const auto j : c10::irange(stages.size())) {
    devices_.push_back(deviceOf(stages[j]->parametersAndBuffers(), j));
  }
  pipeline_ = std::make_unique<pipe::Pipeline>(std::move(stages), devices_,
                                               std::vector<pipe::SkipRoute>(), pipe::ThreadHooks());
}

pipe::ForwardInput Pipe::inputFor(Batch batch) const {
  pipe::ForwardInput input;
  input.tensors = std::move(batch.tensors);
  input.structure = std::move(batch.structure);
  input.chunks = options_.chunks;
  input.training = training_;
  input.checkpoint = options_.checkpoint;
  return input;
}

at::Tensor Pipe::forward(at::Tensor input) {
  pipe::ForwardInput batch = inputFor({{std::move(input)}, nullptr});
  batch.how = {pipe::Scatter::kChunk};
  Batch output = pipeline_->run(std::move(batch));
  TORCH_CHECK_TYPE(
      !output.structure,
      "the last stage returned more than one tensor: call forward with a list of inputs");
  return std::move(output.tensors[0]);
}

c10::IValue Pipe::forward(const std::vector<c10::IValue>& inputs) {
  Batch batch;
  auto arguments = std::make_shared<Structure>(Structure{Structure::Kind::kTuple, {}, {}});
  std::vector<pipe::Scatter> how;
  for (const c10::IValue& input : inputs) {
    arguments->parts.push_back(pipe::addPart(input, batch.tensors));
    how.resize(batch.tensors.size(),
               input.isTensor() ? pipe::Scatter::kChunk : pipe::Scatter::kReplicate);
  }
  batch.structure = std::move(arguments);
  pipe::ForwardInput mini_batch = inputFor(std::move(batch));
  mini_batch.how = std::move(how);
  return pipe::toIValue(pipeline_->run(std::move(mini_batch)));
}

void Pipe::train(bool on) {
  training_ = on;
  if (!sequential_.is_empty()) sequential_->train(on);
  for (torch::jit::Module& script : scripts_)
    script.train(on);
}

}  // namespace weft
