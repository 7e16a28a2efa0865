// A pipeline across two accelerators and the CPU: right values, copies beside the computation,
// nothing used before it is there or after its memory is gone. The accelerators are make-believe
// (fake_accelerator.h), and the order is checked as strictly as a real one would punish.
#include <ATen/ops/allclose.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <memory>

#include "pipe/engine/pipeline.h"
#include "pipe/stage/stage_context.h"
#include "tests/pipe/fake_accelerator.h"

namespace weft::pipe {
namespace {

class Layer final : public Stage {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  Layer(at::Tensor weight, Forward forward)
      : weight_(std::move(weight)), forward_(std::move(forward)) {}
  Batch forward(const Batch& input) override {
    if (input.tensors[0].is_cpu()) fake::hostReads(input.tensors[0]);
    return {{forward_(input.tensors[0], weight_)}, nullptr};
  }
  std::vector<at::Tensor> parametersAndBuffers() override { return {weight_}; }

 private:
  at::Tensor weight_;
  Forward forward_;
};

struct Outcome {
  at::Tensor output;
  at::Tensor input_grad;
  std::vector<at::Tensor> grads;
  std::size_t threads = 0;
};

const std::vector<SkipRoute> kSkip{{0, 3}};

// Four stages with a skip from the first to the last; three mini-batches, gradients added up.
Outcome trained(const std::vector<at::Device>& devices, Checkpoint checkpoint,
                Threading threading) {
  torch::manual_seed(1);
  std::vector<at::Tensor> weights;
  std::vector<std::shared_ptr<Stage>> stages;
  for (std::size_t j = 0; j < devices.size(); ++j) {
    weights.push_back(torch::randn({6, 6}).to(devices[j]).requires_grad_());
    const auto forward = [j](const at::Tensor& x, const at::Tensor& weight) {
      SkipPort& skips = *currentStage()->skips;
      at::Tensor y = torch::tanh(x.mm(weight));
      if (j == 0) skips.put(0, y * 0.5);
      if (j == 3) {
        const at::Tensor far = skips.take(0).value();
        if (far.is_cpu()) fake::hostReads(far);
        y = y + far;
      }
      return y;
    };
    stages.push_back(std::make_shared<Layer>(weights.back(), forward));
  }
  Pipeline pipeline(std::move(stages), devices, kSkip, {});
  pipeline.setThreading(threading);
  const at::Tensor x = torch::randn({12, 6}).to(devices[0]).requires_grad_();
  Outcome outcome;
  for (int round = 0; round < 3; ++round) {
    ForwardInput input;
    input.tensors = {x};
    input.how = {Scatter::kChunk};
    input.chunks = 4;
    input.training = true;
    input.checkpoint = checkpoint;
    outcome.output = pipeline.run(std::move(input)).tensors[0];
    outcome.output.sum().backward();
  }
  outcome.threads = pipeline.threads();
  outcome.output = outcome.output.detach().to(at::kCPU);
  outcome.input_grad = x.grad().to(at::kCPU);
  for (const at::Tensor& weight : weights)
    outcome.grads.push_back(weight.grad().to(at::kCPU));
  return outcome;
}

class Accelerators : public testing::TestWithParam<std::tuple<Checkpoint, Threading>> {
 protected:
  void SetUp() override { fake::install(); }
};

TEST_P(Accelerators, ComputeAsTheCpuDoesInASafeOrder) {
  const auto [checkpoint, threading] = GetParam();
  const Outcome expected = trained(std::vector<at::Device>(4, at::kCPU), checkpoint, threading);
  (void)fake::report();
  const std::vector<at::Device> devices{fake::device(0), fake::device(1), at::kCPU,
                                        fake::device(0)};
  const Outcome found = trained(devices, checkpoint, threading);
  const fake::Report report = fake::report();

  EXPECT_TRUE(at::allclose(found.output, expected.output, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(found.input_grad, expected.input_grad, 1e-4, 1e-5));
  for (std::size_t j = 0; j < 4; ++j)
    EXPECT_TRUE(at::allclose(found.grads[j], expected.grads[j], 1e-4, 1e-5)) << "stage " << j;
  EXPECT_EQ(report.races, std::vector<std::string>());
  EXPECT_EQ(report.device_waits, 0);
  // One per CPU stage, one per accelerator: the first and the last stage share theirs.
  EXPECT_EQ(expected.threads, threading == Threading::kThreads ? 4U : 0U);
  EXPECT_EQ(found.threads, threading == Threading::kThreads ? 3U : 0U);
  // Per round and micro-batch 3 between stages, there and back; what is left are this test's own:
  // weights and the input there, output and gradients back.
  EXPECT_EQ(report.copies - report.copies_on_computing, 3 * 4 * 3 * 2);
  EXPECT_EQ(report.copies_on_computing, 3 + 1 + 1 + 1 + 3);
}

INSTANTIATE_TEST_SUITE_P(
    Pipe, Accelerators,
    testing::Combine(testing::Values(Checkpoint::kNever, Checkpoint::kExceptLast,
                                     Checkpoint::kAlways),
                     testing::Values(Threading::kInline, Threading::kThreads)));

// One stage each on the CPU and on an accelerator, with numbers from the latter's generator.
struct Noisy {
  explicit Noisy(at::Device device) : weight(torch::ones({6}, device).requires_grad_()) {
    const auto near = [](const at::Tensor& x, const at::Tensor& w) { return torch::tanh(x * w); };
    const auto noisy = [](const at::Tensor& x, const at::Tensor& w) {
      const at::Generator& generator = at::globalContext().defaultGenerator(x.device());
      return x * w * torch::rand({6}, generator).to(x.device());
    };
    pipeline = std::make_unique<Pipeline>(
        std::vector<std::shared_ptr<Stage>>{std::make_shared<Layer>(first, near),
                                            std::make_shared<Layer>(weight, noisy)},
        std::vector<at::Device>{at::kCPU, device}, std::vector<SkipRoute>(), ThreadHooks());
    pipeline->setThreading(Threading::kThreads);
  }
  at::Tensor run(const at::Tensor& x, Checkpoint checkpoint) {
    ForwardInput input;
    input.tensors = {x};
    input.how = {Scatter::kChunk};
    input.chunks = 3;
    input.training = true;
    input.checkpoint = checkpoint;
    return pipeline->run(std::move(input)).tensors[0];
  }
  at::Tensor first = torch::ones({6}).requires_grad_();
  at::Tensor weight;
  std::unique_ptr<Pipeline> pipeline;
};

TEST(Accelerator, RepeatsItsRandomNumbers) {
  fake::install();
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> drawn_after;
  for (const Checkpoint checkpoint : {Checkpoint::kNever, Checkpoint::kAlways}) {
    at::Generator generator = at::globalContext().defaultGenerator(fake::device(1));
    generator.set_current_seed(7);
    Noisy noisy(fake::device(1));
    noisy.run(torch::ones({3, 6}), checkpoint).square().sum().backward();
    grads.push_back(noisy.weight.grad().to(at::kCPU));
    drawn_after.push_back(torch::rand({6}, generator));
  }
  EXPECT_TRUE(torch::equal(grads[0], grads[1]));
  EXPECT_TRUE(torch::equal(drawn_after[0], drawn_after[1]));
}

TEST(Accelerator, GoesBackTwiceAndHasGradientsOfGradients) {
  fake::install();
  Noisy noisy(fake::device(0));
  const at::Tensor x = torch::full({3, 6}, 0.5).requires_grad_();
  const at::Tensor loss = noisy.run(x, Checkpoint::kExceptLast).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(torch::allclose(x.grad(), once * 2));

  const at::Tensor grad = torch::autograd::grad({loss}, {x}, {}, std::nullopt, true)[0];
  EXPECT_TRUE(torch::allclose(grad, once));
  const at::Tensor second = torch::autograd::grad({grad.sum()}, {x})[0];
  // y = tanh(x) * r, so y'' = -2 tanh(x) y'
  EXPECT_TRUE(torch::allclose(second, -2 * torch::tanh(x) * once, 1e-4, 1e-5));
}

// The book itself: what is not ordered, it must find.
TEST(FakeAccelerator, FindsWhatIsNotOrdered) {
  fake::install();
  (void)fake::report();
  const c10::impl::VirtualGuardImpl guard(fake::device(0).type());
  const c10::Stream side = guard.getStreamFromGlobalPool(fake::device(0));
  {
    at::Tensor made;
    {
      const c10::StreamGuard on_side(side);
      made = torch::ones({4}, fake::device(0));
    }
    const at::Tensor used = made + 1;  // did not wait, and the allocator was not told
    EXPECT_EQ(fake::report().races.size(), 1U);
  }
  EXPECT_EQ(fake::report().races.size(), 1U);
  {
    at::Tensor made;
    c10::Event event(side.device_type());
    {
      const c10::StreamGuard on_side(side);
      made = torch::ones({4}, fake::device(0));
      event.record(side);
    }
    const c10::Stream here = guard.getStream(fake::device(0));
    event.block(here);
    guard.recordDataPtrOnStream(made.storage().data_ptr(), here);
    const at::Tensor used = made + 1;
  }
  EXPECT_EQ(fake::report().races, std::vector<std::string>());
}

}  // namespace
}  // namespace weft::pipe
