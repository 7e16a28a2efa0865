// Trains a small network in C++ as a pipeline of three stages, each on a thread of its own, and
// compares it with the same network run plainly.
//
//   train [steps]        default 300; the last line says what it came to
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

#include "examples/cpp_pipeline/spirals.h"
#include "pipe/pipe.h"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kBatch = 256;

// A stage: what runs on one thread.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t in)
      : first(register_module("first", nn::Linear(in, kWidth))),
        second(register_module("second", nn::Linear(kWidth, kWidth))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x).tanh()).tanh(); }
  nn::Linear first;
  nn::Linear second;
};
TORCH_MODULE(Block);

nn::Sequential model() {
  torch::manual_seed(0);
  return nn::Sequential(Block(2), Block(kWidth), nn::Linear(kWidth, 1));
}

// Loss of the last step.
float train(const char* name, nn::Sequential& layers, int steps,
            const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  torch::manual_seed(1);
  torch::optim::Adam optimizer(layers->parameters(), 3e-3);
  float last = 0;
  for (int step = 0; step <= steps; ++step) {
    const auto [where, second] = spirals::points(kBatch);
    optimizer.zero_grad();
    const torch::Tensor loss =
        nn::functional::binary_cross_entropy_with_logits(forward(where), second);
    loss.backward();
    optimizer.step();
    last = loss.item<float>();
    if (step % 100 == 0) std::printf("%s: step %d, loss %.3f\n", name, step, last);
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) try {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  torch::set_num_threads(1);  // the stages are what runs side by side

  nn::Sequential piped = model();
  weft::Pipe pipe(piped, {.chunks = 4, .checkpoint = weft::pipe::Checkpoint::kExceptLast});
  const float with = train("pipe", piped, steps, [&](const auto& x) { return pipe.forward(x); });

  nn::Sequential plain = model();
  const float without =
      train("plain", plain, steps, [&](const auto& x) { return plain->forward(x); });

  std::printf("loss %.3f in a pipeline, %.3f without\n", with, without);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
