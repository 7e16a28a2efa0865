// The C++ of docs/guide/cpp.md, pipe.md and pipelines.md, compiled and run.
// tests/docs/test_snippets.py checks that each paragraph of these pages' listings stands in here,
// white space and comments aside: change both.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include "jit_ops/weft.h"
#include "pipe/pipe.h"
#include "tests/jit_ops/processes.h"

namespace {

using weft::testing::expect;
using weft::testing::freePort;
using weft::testing::freshPath;
using weft::testing::runWorkers;

const std::vector<std::string> kFine;

torch::jit::Module encoder() {
  torch::jit::Module module("Encoder");
  module.register_parameter("w", at::full({2, 3}, 0.5).requires_grad_(), false);
  module.define(R"(
    def forward(self, x: Tensor) -> Tensor:
      return torch.matmul(x, self.w)
    def encode(self, x: Tensor, scale: float = 1.0) -> Tensor:
      return torch.matmul(x, self.w) * scale
  )");
  return module;
}

// Compiled only: nobody serves a store at that address.
[[maybe_unused]] void joins() {
  weft::JoinOptions options;
  options.name = "client";
  options.rank = 1;
  options.world_size = 2;
  options.init_method = "tcp://10.0.0.1:29500";
  options.rpc.rpcTimeoutSeconds = 30;
  auto group = weft::Group::join(options);

  group->shutdown();
}

// Compiled only, as above.
[[maybe_unused]] void serves() {
  weft::publish("encoder", torch::jit::load("encoder.pt"));
  auto group = weft::Group::join({.name = "server"});
  group->shutdown();
}

// Compiled only: tests/pipe/cpp_worker_test.sh runs such a program.
[[maybe_unused]] void takesStages() {
  weft::servePipelines();
  auto group = weft::Group::join({.name = "worker1"});
  group->shutdown();
}

std::shared_ptr<weft::Group> join(const std::string& name, int rank, const std::string& path) {
  weft::JoinOptions options;
  options.name = name;
  options.rank = rank;
  options.world_size = 2;
  options.init_method = "file://" + path;
  return weft::Group::join(options);
}

void server(const std::string& path) {
  char folder[] = "/tmp/weft-snippets-XXXXXX";
  expect(::mkdtemp(folder) != nullptr && ::chdir(folder) == 0, "a folder");
  encoder().save("encoder.pt");
  torch::jit::Module module = encoder();

  weft::publish("encoder", torch::jit::load("encoder.pt"));

  weft::publish("scaled",
                weft::servable("scaled(Tensor x, float by=2.0) -> Tensor", [](weft::Values args) {
                  return at::IValue(args[0].toTensor() * args[1].toScalar());
                }));
  weft::publish("fast",
                weft::batched(weft::servable(module, /*no_grad=*/true), {.max_requests = 32}));

  weft::publish("decoder", weft::servable("decoder(RRef(Tensor) x) -> bool", [](weft::Values args) {
                  return at::IValue(args[0].isRRef());
                }));
  expect(::unlink("encoder.pt") == 0 && ::rmdir(folder) == 0, "the folder again");
  join("server", 0, path)->shutdown(60);
}

void client(const std::string& path) {
  const auto group = join("client", 1, path);
  const at::Tensor right = at::ones({4, 3});
  {
    const at::Tensor x = at::ones({4, 2});
    at::Tensor y = weft::rpcSync<at::Tensor>("server", "encoder", {x});
    at::IValue v = weft::rpcSync("server", "encoder", {x, 2.0},
                                 {.method = "encode", .names = {"scale"}, .timeout = 5});
    weft::Future f = weft::rpcAsync("server", "encoder", {x});
    y = weft::wait(f).toTensor();
    y = weft::rpcSync<at::Tensor>("server", "aten::add", {x, x});
    weft::RRef rref = weft::remote("server", "encoder", {x}, {}, c10::TensorType::get());
    y = rref.toHere().toTensor();
    weft::rpcSync("server", "decoder", {rref.toValue()});

    expect(at::equal(y, right) && at::equal(v.toTensor(), right * 2), "the values");
    expect(at::equal(weft::rpcSync<at::Tensor>("server", "scaled", {x}), x * 2), "C++ code");
    expect(at::equal(weft::rpcSync<at::Tensor>("server", "fast", {x}), right), "batches");
  }
  {
    const at::Tensor x = at::ones({4, 2}).requires_grad_();

    weft::AutogradContext context;
    at::Tensor loss = weft::rpcSync<at::Tensor>("server", "encoder", {x}).sum();
    context.backward({loss});
    at::Tensor dx = context.gradient(x);

    expect(at::equal(dx, at::full({4, 2}, 1.5)), "the gradient");
  }

  group->shutdown(60);
}

TEST(Snippets, CallServeAndGradients) {
  const std::string path = freshPath("store");
  EXPECT_EQ(kFine, runWorkers({[&] { server(path); }, [&] { client(path); }}));
}

void rankOfTwo(int rank, const std::string& port) {
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  // One with collectives in it cannot be defined here: examples/cpp_collectives has it.
  torch::jit::Module model("Model");
  model.define(R"(
    def forward(self, x: Tensor) -> Tensor:
      return x + x
  )");
  const at::Tensor x = at::ones({2});

  weft::ProcessGroupOptions options;
  options.timeout = std::chrono::minutes(5);
  auto ranks = weft::joinProcessGroup(options);

  std::vector<at::Tensor> tensors = {x};
  ranks->allreduce(tensors)->wait();
  at::Tensor y = model.forward({x}).toTensor();
  weft::leaveProcessGroup();

  expect(at::equal(x, at::full({2}, 2.0)) && at::equal(y, x * 2), "the sums");
}

TEST(Snippets, AProcessGroup) {
  const std::string port = freePort();
  EXPECT_EQ(kFine, runWorkers({[&] { rankOfTwo(0, port); }, [&] { rankOfTwo(1, port); }}));
}

void pipeline() {
  const at::Tensor batch = at::ones({16, 4});

  weft::Pipe pipe(torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::ReLU()), {8});
  at::Tensor output = pipe.forward(batch);
  output.sum().backward();

  expect(output.size(0) == 16, "a row for each");
}

TEST(Snippets, APipeline) { EXPECT_EQ(kFine, runWorkers({pipeline})); }

}  // namespace
