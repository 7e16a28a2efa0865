// weft::Pipe in C++, without Python: gradients, TorchScript stages, errors, stages that overlap.
#include "pipe/pipe.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/waiting.h"

namespace {

namespace nn = torch::nn;

nn::Sequential model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 3));
}

torch::jit::Module script(const std::string& body) {
  torch::jit::Module module("Stage");
  module.register_parameter("weight", torch::full({1}, 2.0).set_requires_grad(true),
                            /*is_buffer=*/false);
  module.define(body);
  return module;
}

TEST(Pipe, EqualsThePlainSequential) {
  using weft::pipe::Checkpoint;
  for (const auto mode : {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    nn::Sequential plain = model();
    nn::Sequential piped = model();
    weft::Pipe pipe(piped, {3, mode});
    for (int round = 0; round < 20; ++round) {  // inline, then on threads, as measured
      const at::Tensor x = torch::randn({7, 4});
      const at::Tensor output = pipe.forward(x);
      const at::Tensor expected = plain->forward(x);
      ASSERT_TRUE(torch::allclose(output, expected, 1e-5, 1e-6));
      output.square().sum().backward();
      expected.square().sum().backward();
    }
    for (std::size_t k = 0; k < plain->parameters().size(); ++k) {
      EXPECT_TRUE(torch::allclose(piped->parameters()[k].grad(), plain->parameters()[k].grad(),
                                  1e-4, 1e-4));
    }
  }
}

TEST(Pipe, RunsTorchScriptWithSeveralValues) {
  const std::vector<torch::jit::Module> modules{
      script("def forward(self, x, n: int):\n  return x * self.weight, {'n': x + n}\n"),
      script("def forward(self, x, more: Dict[str, Tensor]):\n"
             "  return x * self.weight + more['n'], x.size(0)\n")};
  weft::Pipe pipe(modules, {2, weft::pipe::Checkpoint::kAlways});
  const c10::IValue output = pipe.forward(std::vector<c10::IValue>{torch::ones({4}), 3});
  const auto& parts = output.toTupleRef().elements();
  EXPECT_TRUE(torch::allclose(parts[0].toTensor(), torch::full({4}, 8.0)));
  EXPECT_EQ(parts[1].toListRef().size(), 2U);
  parts[0].toTensor().sum().backward();
  EXPECT_EQ(modules[0].attr("weight").toTensor().grad().item<float>(), 8.0F);
  EXPECT_EQ(modules[1].attr("weight").toTensor().grad().item<float>(), 8.0F);
}

TEST(Pipe, ThrowsWhatAStageThrowsAndWorksAgain) {
  auto broken = std::make_shared<std::atomic<bool>>(true);
  const auto stage = [broken](const at::Tensor& x) {
    if (*broken) throw std::domain_error("on purpose");
    return x * 2;
  };
  nn::Sequential both{nn::Functional{stage}, nn::Functional{stage}};
  weft::Pipe pipe(both, {4});
  const at::Tensor x = torch::ones({4});
  for (int round = 0; round < 3; ++round)
    EXPECT_THROW(pipe.forward(x), std::domain_error);
  *broken = false;
  EXPECT_TRUE(torch::equal(pipe.forward(x), x * 4));
}

// Long tasks are given to threads, in training and in evaluation, forward and backward; here they
// are seen in one stage while another is at work.
TEST(Pipe, StagesAreAtWorkAtTheSameTime) {
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  const auto stage = [&](const at::Tensor& x) {
    const int now = ++inside;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    weft::takes(std::chrono::milliseconds(2));
    --inside;
    return x * 2;
  };
  weft::Pipe pipe(nn::Sequential{nn::Functional{stage}, nn::Functional{stage}}, {4});
  for (const bool training : {true, false}) {
    pipe.train(training);
    most = 0;
    for (int round = 0; round < 40 && most < 2; ++round)
      EXPECT_TRUE(torch::equal(pipe.forward(torch::ones({4})), torch::full({4}, 4.0)));
    EXPECT_EQ(most, 2);
  }
}

at::Tensor drawn(const at::Tensor& like, const std::optional<at::Generator>& /*generator*/) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const auto number = generator.get<at::CPUGeneratorImpl>()->random();
  return at::full_like(like, static_cast<double>(number % 1024));
}

// An operator that draws by itself; a recomputation draws the same, or is refused.
TEST(Pipe, RepeatsTheNumbersOfAnOperatorThatCameLater) {
  using Draw = at::Tensor(const at::Tensor&, const std::optional<at::Generator>&);
  const weft::Pipe before(model());
  torch::Library library(torch::Library::DEF, "weft_test", std::nullopt, __FILE__, __LINE__);
  library.def("draw(Tensor like, Generator? generator=None) -> Tensor");
  library.impl("draw", torch::dispatch(c10::DispatchKey::CPU, &drawn));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("weft_test::draw", "");
  const auto drawn_for = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return op.typed<Draw>().call(x, std::nullopt);
  };
  const auto stage = [&](const at::Tensor& x) { return x * drawn_for(x); };
  weft::Pipe pipe(nn::Sequential{nn::Functional{stage}, nn::Functional{stage}},
                  {4, weft::pipe::Checkpoint::kAlways});
  const at::Tensor x = torch::ones({8}).requires_grad_();
  const at::Tensor output = pipe.forward(x);
  output.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), output.detach()));
}

TEST(Pipe, RefusesWhatItCannotBe) {
  EXPECT_THROW(weft::Pipe(nn::Sequential()), c10::Error);
  EXPECT_THROW(weft::Pipe(model(), {0}), c10::Error);
}

}  // namespace
