// weft::Pipe: pipelines for C++ programs. The same engine as weft.Pipe in Python.
//
//   weft::Pipe pipe(torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::ReLU()),
//                   {.chunks = 8});
//   at::Tensor output = pipe.forward(batch);
//   output.sum().backward();
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <vector>

#include "pipe/engine/pipeline.h"
#include "transport/base/api.h"

namespace weft {

struct PipeOptions {
  // How many micro-batches a mini-batch is split into; a small mini-batch gives fewer.
  std::size_t chunks = 1;
  pipe::Checkpoint checkpoint = pipe::Checkpoint::kExceptLast;
};

class WEFT_API Pipe {
 public:
  // A stage per module of the Sequential, each on the device of its parameters, else on the CPU.
  // Each takes and gives one tensor. Throws c10::Error for an empty Sequential, for chunks = 0, and
  // for a module with parameters on several devices.
  explicit Pipe(torch::nn::Sequential modules, PipeOptions options = {});
  // A stage per module; tuples, lists and dictionaries may pass between them.
  explicit Pipe(std::vector<torch::jit::Module> modules, PipeOptions options = {});

  // Runs a mini-batch, split along dimension 0. The result is on the last stage's device. Any
  // thread. What a stage throws is thrown here.
  at::Tensor forward(at::Tensor input);
  // The same for several arguments and any result; tensors are split, other values go to all.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);

  // Checkpoints are made in training only. The modules' own modes are set with them.
  void train(bool on = true);
  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  pipe::ForwardInput inputFor(pipe::Batch batch) const;
  void build(std::vector<std::shared_ptr<pipe::Stage>> stages);

  PipeOptions options_;
  bool training_ = true;
  torch::nn::Sequential sequential_{nullptr};
  std::vector<torch::jit::Module> scripts_;
  std::vector<c10::Device> devices_;
  std::unique_ptr<pipe::Pipeline> pipeline_;
};

}  // namespace weft
