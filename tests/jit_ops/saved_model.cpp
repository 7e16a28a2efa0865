// Loads TorchScript files whose models call a Python worker, runs them, frozen too, and serves that
// worker: one that uses torch.ops.weft by hand, and one that holds a weft.RemoteModule, whose
// result and gradients are those of the same model in one process, to the last bit.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "jit_ops/weft.h"

#include "tests/support/waiting.h"

namespace {

void expect(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(what);
}

void waitFor(const std::string& name) {
  const auto published = [&] {
    for (const weft::PublishedInfo& info : weft::publishedBy("python"))
      if (info.name == name) return true;
    return false;
  };
  if (!weft::waitUntil(published, std::chrono::seconds(60), std::chrono::milliseconds(20)))
    throw std::runtime_error("the Python worker does not publish " + name);
}

void runByHand(const std::string& path) {
  torch::jit::Module model = torch::jit::load(path);
  model.eval();
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor right = at::full({2, 3}, 6.0);
  expect(model.forward({x}).toTensor().equal(right), "a wrong sum");
  expect(torch::jit::freeze(model).forward({x}).toTensor().equal(right), "wrong when frozen");
}

void runRemoteModule(const std::string& path) {
  const torch::jit::Module right = torch::jit::load(path + ".reference");
  const auto expected = [&](const char* name) { return right.attr(name).toTensor(); };
  torch::jit::Module model = torch::jit::load(path + ".hybrid");  // asks nobody yet
  const at::Tensor x = expected("x").clone().requires_grad_();
  expect(model.forward({x}).toTensor().equal(expected("y")), "the remote module's result");
  {
    weft::AutogradContext context;
    context.backward({model.forward({x}).toTensor().square().sum()});
    const at::Tensor weight = model.attr("local").toModule().attr("weight").toTensor();
    expect(context.gradient(x).equal(expected("dx")), "the input's gradient");
    expect(context.gradient(weight).equal(expected("dw")), "the local parameter's gradient");
    const auto there = weft::rpcSync("python", "gradients", {context.id()}).toList();
    expect(there.get(0).toTensor().equal(expected("dhead")), "the remote weight's gradient");
    expect(there.get(1).toTensor().equal(expected("dbias")), "the remote bias's gradient");
  }
  model.eval();
  torch::jit::Module frozen = torch::jit::freeze(model);
  expect(frozen.forward({x}).toTensor().equal(expected("y")), "frozen");
  torch::jit::Module fast = torch::jit::optimize_for_inference(frozen);
  expect(fast.forward({x}).toTensor().allclose(expected("y")), "optimised for inference");
}

}  // namespace

int main(int /*argc*/, char** argv) {
  try {
    weft::publish("scaled",
                  weft::servable("scaled(Tensor x, float by=2.0) -> Tensor", [](weft::Values args) {
                    return at::IValue(args[0].toTensor().mul(args[1].toScalar()));
                  }));
    weft::JoinOptions options;
    options.name = "cpp";
    const auto group = weft::Group::join(options);
    runByHand(argv[1]);
    waitFor("gradients");
    runRemoteModule(argv[1]);
    group->shutdown(60);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "saved_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
