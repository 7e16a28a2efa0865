// Loads a TorchScript file whose model calls a Python worker, runs it, frozen too, and serves that
// worker.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "jit_ops/weft.h"

int main(int /*argc*/, char** argv) {
  try {
    weft::publish("scaled",
                  weft::servable("scaled(Tensor x, float by=2.0) -> Tensor", [](weft::Values args) {
                    return at::IValue(args[0].toTensor().mul(args[1].toScalar()));
                  }));
    weft::JoinOptions options;
    options.name = "cpp";
    const auto group = weft::Group::join(options);
    torch::jit::Module model = torch::jit::load(argv[1]);
    model.eval();
    const at::Tensor x = at::ones({2, 3});
    const at::Tensor right = at::full({2, 3}, 6.0);
    if (!model.forward({x}).toTensor().equal(right)) throw std::runtime_error("a wrong sum");
    torch::jit::Module frozen = torch::jit::freeze(model);
    if (!frozen.forward({x}).toTensor().equal(right)) throw std::runtime_error("wrong when frozen");
    group->shutdown(60);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "saved_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
