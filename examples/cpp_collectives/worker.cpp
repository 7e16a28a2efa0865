// A rank in C++: worker.py without Python.
//
//   worker model.pt         (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE as torchrun sets them)
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "jit_ops/weft.h"

namespace {

// An operator by name, as TorchScript calls it.
at::Tensor sumOfAll(const at::Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("weft::all_reduce", "")
          .typed<at::Tensor(const at::Tensor&, c10::string_view, c10::string_view)>();
  return op.call(x, "sum", "0");
}

void run(const char* path) {
  const auto group = weft::joinProcessGroup();
  torch::jit::Module model = torch::jit::load(path);
  const at::Tensor x =
      (at::arange(4.0, at::kFloat).reshape({4, 1}) + 10 * group->getRank()).requires_grad_();
  const at::Tensor y = model.forward({x}).toTensor();
  const double total = sumOfAll(y.detach().sum()).item<double>();
  y.square().mul(at::arange(4.0, at::kFloat).reshape({4, 1})).sum().backward();
  std::printf(
      "C++ rank %d of %d: rows from %.3f to %.3f, everybody's add up to %.3f, gradient %.3f\n",
      group->getRank(), group->getSize(), y[0].item<double>(), y[3].item<double>(), std::abs(total),
      x.grad().norm().item<double>());
  weft::leaveProcessGroup();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "model.pt");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 1;
  }
  return 0;
}
