// A worker's mini-batch of scripted stages: the numbers are those of autograd, without Python.
#include "pipe/scripted/script_worker_run.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "pipe/scripted/script_loss.h"

namespace weft::pipe {
namespace {

using torch::jit::Module;

constexpr const char* kHere = "here";
constexpr std::int64_t kParts = 3;

Module moduleOf(const std::string& source) {
  Module module("M");
  module.define(source);
  return module;
}

// Of weights that grow with `seed`.
Module linear(double seed) {
  Module module("M");
  module.register_parameter(
      "w", (at::arange(9, at::kFloat).reshape({3, 3}) * (0.01 * seed)).requires_grad_(), false);
  module.define("def forward(self, x):\n  return torch.tanh(torch.mm(x, self.w))\n");
  return module;
}

// Has a buffer `runs`, which it changes.
Module counting(const std::string& source) {
  Module module("M");
  module.register_buffer("runs", at::zeros({}));
  module.define(source);
  return module;
}

Module squares() {
  return moduleOf("def forward(self, y, target):\n  return (y - target).pow(2).sum()\n");
}

at::Tensor part(std::int64_t number) {
  return at::arange(6, at::kFloat).reshape({2, 3}) * 0.1 + static_cast<double>(number);
}

WorkerTask forward(std::int64_t stage, std::int64_t part) {
  return {WorkerTask::Kind::kForward, stage, part};
}
WorkerTask backward(std::int64_t stage, std::int64_t part) {
  return {WorkerTask::Kind::kBackward, stage, part};
}

// All of a pipeline here, or its last stages.
WorkerPart partOf(const std::vector<Module>& layers, std::int64_t elsewhere = 0) {
  WorkerPart part{"pipeline", kHere, kHere, {}, {}};
  for (std::int64_t stage = 0; stage < elsewhere; ++stage)
    part.places.push_back({"elsewhere"});
  for (const Module& layer : layers) {
    part.stages[static_cast<std::int64_t>(part.places.size())] = {layer};
    part.places.push_back({kHere});
  }
  return part;
}

WorkerJob trainingJob(std::vector<WorkerTask> tasks, bool recompute) {
  WorkerJob job;
  job.mini_batch = 1;
  job.tasks = std::move(tasks);
  job.recompute.assign(kParts, recompute);
  job.trains = true;
  job.criterion = squares();
  for (std::int64_t number = 0; number < kParts; ++number) {
    job.targets.emplace_back(at::ones({2, 3}) * static_cast<double>(number));
    job.weights.push_back(0.5);
  }
  return job;
}

WorkerJob forwardJob(std::vector<WorkerTask> tasks) {
  WorkerJob job;
  job.mini_batch = 1;
  job.tasks = std::move(tasks);
  job.recompute.assign(kParts, false);
  return job;
}

// Of one micro-batch in one stage, which is recomputed.
WorkerJob oneStep() { return trainingJob({forward(0, 0), backward(0, 0)}, true); }

// What run() throws; nothing if it returns.
std::string errorOf(ScriptWorkerRun& run) {
  try {
    run.run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

::testing::AssertionResult contains(const std::string& text, const std::string& what) {
  if (text.find(what) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << what << "\" is not in: " << text;
}

class ScriptWorkerRunTest : public ::testing::Test {
 protected:
  void TearDown() override { closeArrivals("pipeline", arrivals_); }
  const std::shared_ptr<Arrivals> arrivals_ = openArrivals("pipeline");
};

// Two stages whose micro-batches run in an order of 1F1B, against autograd over the whole.
void trainsAsAutograd(bool recompute, bool split) {
  const std::vector<Module> layers{linear(1), linear(2)};
  std::vector<WorkerTask> tasks{forward(0, 0)};
  for (std::int64_t number = 0; number < kParts; ++number) {
    if (number + 1 < kParts) tasks.push_back(forward(0, number + 1));
    tasks.push_back(forward(1, number));
    tasks.push_back(backward(1, number));
    tasks.push_back(backward(0, number));
    if (split) tasks.push_back({WorkerTask::Kind::kWeights, 1, number});
  }
  ScriptWorkerRun run(partOf(layers), trainingJob(std::move(tasks), recompute), nullptr);
  Tensors inputs;
  for (std::int64_t number = 0; number < kParts; ++number) {
    inputs.push_back(part(number).requires_grad_());
    run.give(number, {{part(number).requires_grad_()}});
  }
  run.run();
  std::vector<Module> plain{linear(1), linear(2)};
  at::Tensor total = at::zeros({});
  for (std::int64_t number = 0; number < kParts; ++number) {
    const auto at = static_cast<std::size_t>(number);
    const at::Tensor output = plain[1].forward({plain[0].forward({inputs[at]})}).toTensor();
    const at::Tensor loss =
        (output - at::ones({2, 3}) * static_cast<double>(number)).pow(2).sum() * 0.5;
    torch::autograd::backward({loss});
    total = total + loss.detach();
    EXPECT_TRUE(at::equal(run.firstGradients().at(number).at(0), inputs[at].grad()));
  }
  EXPECT_TRUE(at::equal(run.loss(), total));
  for (std::size_t at = 0; at < 2; ++at) {
    EXPECT_TRUE(
        at::equal(layers[at].attr("w").toTensor().grad(), plain[at].attr("w").toTensor().grad()));
  }
}

TEST_F(ScriptWorkerRunTest, TrainsAsAutogradDoes) { trainsAsAutograd(false, false); }
TEST_F(ScriptWorkerRunTest, ARecomputationMakesTheSameGradients) { trainsAsAutograd(true, false); }
TEST_F(ScriptWorkerRunTest, TheTwoHalvesOfABackwardMakeTheSameGradients) {
  trainsAsAutograd(false, true);
}

TEST_F(ScriptWorkerRunTest, ARecomputationDrawsTheSameNumbers) {
  Module noisy = moduleOf("def forward(self, x):\n  return x * torch.rand_like(x)\n");
  WorkerJob job = trainingJob({forward(0, 0), backward(0, 0)}, true);
  ScriptWorkerRun run(partOf({noisy}), std::move(job), nullptr);
  run.give(0, {{part(0).requires_grad_()}});
  at::manual_seed(7);
  run.run();
  at::manual_seed(7);
  const at::Tensor drawn = at::rand_like(part(0));
  EXPECT_TRUE(at::allclose(run.firstGradients().at(0).at(0), part(0) * drawn * drawn));
}

TEST_F(ScriptWorkerRunTest, NoticesARecomputationThatDrawsOtherNumbers) {
  const char* const source =
      "def forward(self, x):\n"
      "  drawn = torch.rand([int(self.runs.add_(1))])\n"
      "  return x * 2 + 0 * drawn.sum()\n";
  ScriptWorkerRun run(partOf({counting(source)}), oneStep(), nullptr);
  run.give(0, {{part(0).requires_grad_()}});
  EXPECT_TRUE(contains(errorOf(run), "did not draw the random numbers of its first run"));
}

TEST_F(ScriptWorkerRunTest, NoticesARecomputationThatGivesAnotherValue) {
  const char* const source = "def forward(self, x):\n  return x * self.runs.add_(1).clone()\n";
  ScriptWorkerRun run(partOf({counting(source)}), oneStep(), nullptr);
  run.give(0, {{part(0).requires_grad_()}});
  EXPECT_TRUE(contains(errorOf(run), "gave another value 0 when it ran again"));
}

TEST_F(ScriptWorkerRunTest, TakesWhatAnotherWorkerSent) {
  arrivals_->put({1, Sent::kInput, 1, 0}, {"", {part(0)}});
  arrivals_->put({1, Sent::kInput, 1, 1}, {"(", {part(1)}});
  ScriptWorkerRun run(partOf({linear(1)}, 1), forwardJob({forward(1, 0), forward(1, 1)}), nullptr);
  run.run();
  const at::NoGradGuard no_grad;
  Module layer = linear(1);
  const at::Tensor wanted =
      at::cat({layer.forward({part(0)}).toTensor(), layer.forward({part(1)}).toTensor()});
  EXPECT_TRUE(at::equal(run.output().toTensor(), wanted));
  EXPECT_FALSE(run.output().toTensor().requires_grad());
}

TEST_F(ScriptWorkerRunTest, ALossThatComesAgainHasTheStateThatWasSaved) {
  Module loss("Loss");
  loss.register_attribute("calls", c10::IntType::get(), 0);
  loss.define("def forward(self) -> int:\n  self.calls += 1\n  return self.calls\n");
  std::ostringstream file;
  loss.save(file);
  Module first = loadLoss(file.str());
  EXPECT_EQ(first.forward({}).toInt(), 1);
  EXPECT_EQ(first.forward({}).toInt(), 2);
  EXPECT_EQ(loadLoss(file.str()).forward({}).toInt(), 1);
  EXPECT_THROW(loadLoss("no module"), std::exception);
}

TEST_F(ScriptWorkerRunTest, AnUnchangedLossIsNotWrittenAgain) {
  Module inner("Inner"), loss("Loss");
  const at::Tensor weight = at::ones({2});
  inner.register_buffer("weight", weight);
  loss.register_attribute("scale", c10::FloatType::get(), 1.0);
  loss.register_module("inner", inner);
  loss.define("def forward(self, x):\n  return (x * self.inner.weight).sum() * self.scale\n");
  const auto scaleTimesWeight = [&] {
    return loadLoss(*saveLoss(loss)).forward({at::ones({2})}).toTensor().item<double>();
  };
  const auto first = saveLoss(loss);
  EXPECT_EQ(saveLoss(loss), first);
  weight.tensor_data()[0] = 3.0;  // no version tells
  EXPECT_EQ(scaleTimesWeight(), 4.0);
  loss.setattr("scale", 2.0);
  EXPECT_EQ(scaleTimesWeight(), 8.0);
}

TEST_F(ScriptWorkerRunTest, ALossWithAListIsWrittenEachTime) {
  Module loss("Loss");
  const c10::List<std::int64_t> counts({1});
  loss.register_attribute("counts", c10::ListType::ofInts(), counts);
  loss.define("def forward(self) -> int:\n  return self.counts[0]\n");
  EXPECT_EQ(loadLoss(*saveLoss(loss)).forward({}).toInt(), 1);
  loss.attr("counts").toIntList().set(0, 5);
  EXPECT_EQ(loadLoss(*saveLoss(loss)).forward({}).toInt(), 5);
}

TEST_F(ScriptWorkerRunTest, RecordsWhenItsTasksRan) {
  arrivals_->put({1, Sent::kInput, 1, 0}, {"", {part(0)}});
  ScriptWorkerRun run(partOf({linear(1)}, 1), forwardJob({forward(1, 0)}), nullptr);
  const TaskRecord& record = *run.records().at(0);
  EXPECT_EQ(record.created, 0);
  run.run();
  EXPECT_GT(record.created, 0);
  EXPECT_LE(record.created, record.started);
  EXPECT_LE(record.started, record.ended);
}

TEST_F(ScriptWorkerRunTest, AMiniBatchThatIsOverEndsTheRun) {
  ScriptWorkerRun run(partOf({linear(1)}, 1), forwardJob({forward(1, 0)}), nullptr);
  arrivals_->end(1, "a stage failed");
  EXPECT_THROW(run.run(), Abandoned);
}

TEST_F(ScriptWorkerRunTest, AnErrorNamesTheTask) {
  Module failing = moduleOf("def forward(self, x):\n  assert False, 'on purpose'\n  return x\n");
  ScriptWorkerRun run(partOf({failing}), forwardJob({forward(0, 2)}), nullptr);
  run.give(2, {{part(2)}});
  const std::string error = errorOf(run);
  EXPECT_TRUE(contains(error,
                       "stage 0 of the Pipe, on worker 'here', failed in the forward of "
                       "micro-batch 2: "));
  EXPECT_TRUE(contains(error, "on purpose"));
}

TEST_F(ScriptWorkerRunTest, RefusesAStageThatChangesWhatARecomputationNeeds) {
  Module changes = moduleOf("def forward(self, x):\n  return x.add_(1)\n");
  ScriptWorkerRun run(partOf({changes}), trainingJob({forward(0, 0), backward(0, 0)}, true),
                      nullptr);
  run.give(0, {{part(0)}});
  EXPECT_TRUE(contains(errorOf(run), "changes its input in place"));
}

TEST_F(ScriptWorkerRunTest, RefusesAStageThatChangesOneOfTwoOfOneMemory) {
  Module changes = moduleOf("def forward(self, x, y):\n  return x.add_(1) + y\n");
  arrivals_->put({1, Sent::kInput, 1, 0}, {"&(", {part(0), part(0)}});
  ScriptWorkerRun run(partOf({changes}, 1), forwardJob({forward(1, 0)}), nullptr);
  EXPECT_TRUE(contains(errorOf(run), "changes one of its inputs in place"));
}

TEST_F(ScriptWorkerRunTest, RefusesAStageThatChangesWhatItGave) {
  Module gives("M");
  gives.register_buffer("kept", at::zeros({2, 3}));
  gives.define("def forward(self, x):\n  return self.kept.copy_(x)\n");
  ScriptWorkerRun run(partOf({gives, linear(1)}), forwardJob({forward(0, 0), forward(0, 1)}),
                      nullptr);
  run.give(0, {{part(0)}});
  run.give(1, {{part(1)}});
  EXPECT_TRUE(contains(errorOf(run), "changes in place what it has given"));
}

TEST_F(ScriptWorkerRunTest, SaysWhereALeafThatIsChangedMayComeFrom) {
  Module changes = moduleOf("def forward(self, x):\n  return x.relu_()\n");
  ScriptWorkerRun run(partOf({changes}), trainingJob({forward(0, 0), backward(0, 0)}, false),
                      nullptr);
  run.give(0, {{part(0).requires_grad_()}});
  const std::string error = errorOf(run);
  EXPECT_TRUE(contains(error, "leaf Variable that requires grad"));
  EXPECT_TRUE(contains(error, "let the stage's first operation make a new tensor"));
}

TEST_F(ScriptWorkerRunTest, TensorsOfInferenceModeHaveNoVersions) {
  const c10::InferenceMode inference;
  ScriptWorkerRun run(partOf({linear(1), linear(2)}), forwardJob({forward(0, 0), forward(1, 0)}),
                      nullptr);
  run.give(0, {{part(0)}});
  run.run();
  EXPECT_EQ(run.output().toTensor().sizes(), at::IntArrayRef({2, 3}));
}

TEST_F(ScriptWorkerRunTest, JoinsTheOutputAtItsTopLevel) {
  Module gives = moduleOf("def forward(self, x):\n  return x, [x, x + 1]\n");
  ScriptWorkerRun run(partOf({gives}), forwardJob({forward(0, 0), forward(0, 1)}), nullptr);
  run.give(0, {{part(0)}});
  run.give(1, {{part(1)}});
  run.run();
  const at::IValue output = run.output();
  const auto& columns = output.toTupleRef().elements();
  EXPECT_TRUE(at::equal(columns.at(0).toTensor(), at::cat({part(0), part(1)})));
  const auto lists = columns.at(1).toListRef();
  ASSERT_EQ(lists.size(), 2U);
  EXPECT_TRUE(at::equal(lists[1].toTensorVector().at(1), part(1) + 1));
}

TEST_F(ScriptWorkerRunTest, RefusesTasksThatItCannotDo) {
  const auto make = [&](WorkerJob job) {
    const ScriptWorkerRun run(partOf({linear(1)}, 1), std::move(job), nullptr);
  };
  EXPECT_THROW(make(forwardJob({forward(0, 0)})), c10::Error);       // another worker's stage
  EXPECT_THROW(make(forwardJob({forward(1, kParts)})), c10::Error);  // no such micro-batch
  EXPECT_THROW(make(forwardJob({backward(1, 0)})), c10::Error);
  WorkerJob no_loss = trainingJob({forward(1, 0)}, false);
  no_loss.criterion.reset();
  EXPECT_THROW(make(std::move(no_loss)), c10::Error);
}

TEST(ScriptValues, ComeAsTheyWere) {
  const Module takes = moduleOf("def forward(self, x, y):\n  return x + y\n");
  const auto& schema = takes.get_method("forward").function().getSchema();
  const at::Tensor x = part(0);
  const at::Tensor y = part(1);
  const auto come = [&](const at::IValue& value) {
    return unpack(pack(value, nullptr), schema, nullptr);
  };
  EXPECT_TRUE(come(x).values.at(0).toTensor().is_same(x));
  const StageArguments both = come(c10::ivalue::Tuple::create({x, y}));
  EXPECT_FALSE(both.lost_sharing);
  EXPECT_TRUE(both.values.at(1).toTensor().is_same(y));
  EXPECT_TRUE(come(c10::List<at::Tensor>({x, y})).values.at(0).isTensorList());
  EXPECT_TRUE(come(c10::ivalue::Tuple::create({x, x.view({3, 2})})).lost_sharing);
}

TEST(ScriptValues, NeedPythonWhereTheyAreNested) {
  c10::Dict<std::string, at::Tensor> named;
  named.insert("x", part(0));
  EXPECT_THROW(pack(named, nullptr), c10::Error);
  EXPECT_THROW(pack(c10::ivalue::Tuple::create({part(0), 3}), nullptr), c10::Error);
}

TEST(ScriptValues, GradientsMayBeMissing) {
  const Tensors gradients{part(0), {}, part(1)};
  const Tensors come = unpackGradients(packGradients(gradients), nullptr);
  ASSERT_EQ(come.size(), 3);
  EXPECT_TRUE(come[0].is_same(gradients[0]));
  EXPECT_FALSE(come[1].defined());
  EXPECT_TRUE(come[2].is_same(gradients[2]));
  EXPECT_EQ(unpackGradients(packGradients({{}}), nullptr).size(), 1);
  EXPECT_TRUE(unpackGradients(packGradients({}), nullptr).empty());
  EXPECT_THROW(unpackGradients({std::string("*\1\1", 3), {part(0)}}, nullptr), c10::Error);
}

}  // namespace
}  // namespace weft::pipe
