#include "pipe/engine/plain_order.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/cell/graph_run.h"
#include "pipe/data/memory.h"
#include "pipe/schedule/schedule.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// One micro-batch on its way through the stages.
class StageWalk {
 public:
  StageWalk(PipelineContext& pipeline, Batch input)
      : batch(std::move(input)), pipeline_(pipeline), skips_(pipeline.routes.size()) {}

  // `run` calls the stage with a batch.
  void through(StageContext context, const auto& run) {
    const c10::Device device = pipeline_.devices[context.stage];
    for (at::Tensor& tensor : batch.tensors)
      tensor = moved(tensor, device);
    for (const std::size_t route : pipeline_.incoming[context.stage])
      skips_.put(route, moved(skips_.take(route).value_or(at::Tensor()), device));
    context.skips = &skips_;
    const StageContextGuard guard(context);
    const c10::OptionalDeviceGuard current(ifAccelerator(device));
    const std::lock_guard alone(pipeline_.in_use[context.stage]);
    batch = run(batch);
    TORCH_CHECK_TYPE(!batch.tensors.empty(), "stage ", context.stage,
                     " returned no tensor; a partition must return at least one");
  }

  Batch batch;

 private:
  PipelineContext& pipeline_;
  SkipPort skips_;
};

// What the last stage gives for micro-batch i, which goes through all stages as in the forward.
std::vector<at::Tensor> runAgain(const MiniBatch& run, std::size_t i,
                                 std::vector<at::Tensor> tensors) {
  const MiniBatchContext& mini_batch = run.context();
  PipelineContext& pipeline = mini_batch.pipeline;
  const ThreadStateGuard thread_state(mini_batch.thread_state);
  const NoAutocastCache no_cache;
  StageWalk walk(pipeline, {std::move(tensors), run.input().structure});
  for (const auto j : c10::irange(pipeline.stages.size())) {
    const RngScope scope({}, pipeline.devices[j], RngScope::Purpose::kRepeat,
                         run.cell({i, j}).rng(), /*expected=*/false);
    walk.through({.stage = j,
                  .micro_batch = i,
                  .micro_batches = mini_batch.micro_batches,
                  .recomputing = true,
                  .mini_batch = mini_batch.number,
                  .in_backward = true},
                 [&](const Batch& batch) {
                   return pipeline.stages[j]->forwardAgain(batch, *mini_batch.tensors[j]);
                 });
    scope.checkRepeated(j);
    run.cell({i, j}).sample().checkRepeated(walk.batch.tensors, j);
  }
  return std::move(walk.batch.tensors);
}

// Each input's alias behind a node of its own: there inner gradients end, and no hooks of what was
// before it are called.
struct InputAliases {
  explicit InputAliases(const std::vector<at::Tensor>& tensors) {
    for (const auto k : c10::irange(tensors.size())) {
      const at::Tensor& tensor = tensors[k];
      const std::size_t first = firstSame(tensors, k);
      const bool ends_here = first == k && tensor.requires_grad();  // the first one's has all
      at::Tensor alias = first < k ? aliases[first] : ends_here ? aliasOf(tensor) : tensor.detach();
      ends.push_back(ends_here ? autograd::impl::gradient_edge(alias) : autograd::Edge());
      aliases.push_back(std::move(alias));
    }
  }
  std::vector<at::Tensor> aliases;
  autograd::edge_list ends;
};

// Throws if the first stage changed a copy of a piece, and the memory of the original also belongs
// to another input, which did not see the change.
void refuseWritesToOtherInputs(const std::vector<at::Tensor>& given,
                               const std::vector<std::vector<at::Tensor>>& copies,
                               const std::vector<std::vector<std::uint32_t>>& versions) {
  for (const auto k : c10::irange(given.size())) {
    bool changed = false;
    for (const auto i : c10::irange(copies.size()))
      changed |= versionOf(copies[i][k]) != versions[i][k];
    if (!changed) continue;
    for (const at::Tensor& other : given) {
      TORCH_CHECK(other.is_same(given[k]) || !mayOverlap(other, given[k]),
                  "stage 0 changed its input ", k,
                  " in place, and its memory also belongs to another input: pass a clone of one of "
                  "them, or work out of place (inplace=False)");
    }
  }
}

// For a stage that changes its input in place, which may be a piece: the mini-batch stays as it
// was, and pieces of one tensor count as one where autograd watches for changes.
void copy(std::vector<std::vector<at::Tensor>>& pieces) {
  for (std::vector<at::Tensor>& tensors : pieces) {
    const std::vector<at::Tensor> before = tensors;
    for (const auto k : c10::irange(tensors.size())) {
      const std::size_t first = firstSame(before, k);
      tensors[k] = first < k ? at::Tensor(tensors[first]) : copyOf(before[k]);
    }
  }
}

}  // namespace

bool isTransformed() {
  return c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

bool isWatched() {
  return torch::jit::tracer::isTracing() || c10::impl::TorchDispatchModeTLS::any_modes_set();
}

Batch forwardInPlainOrder(PipelineContext& pipeline, const ForwardInput& input) {
  // A trace is to be the same whether gradients are on, and whatever was learnt of the stages.
  const bool traced = torch::jit::tracer::isTracing();
  const bool recorded = at::GradMode::is_enabled() || isTransformed() || traced;
  std::vector<std::vector<at::Tensor>> pieces =
      scatter(input.tensors, input.how, input.chunks, recorded ? History::kRecord : History::kDrop);
  std::vector<std::vector<at::Tensor>> copies;
  std::vector<std::vector<std::uint32_t>> versions;
  if (recorded && (traced || pipeline.traits[0].input() != InputTrait::kReads)) {
    copy(pieces);
    copies = pieces;
    for (const std::vector<at::Tensor>& tensors : copies)
      versions.push_back(versionsOf(tensors));
  }
  const std::uint64_t number = nextMiniBatchNumber();
  std::vector<StageWalk> walks;
  for (std::vector<at::Tensor>& tensors : pieces)
    walks.emplace_back(pipeline, Batch{std::move(tensors), input.structure});
  for (const auto [i, j] : gpipeOrder(walks.size(), pipeline.stages.size())) {
    walks[i].through({.stage = j,
                      .micro_batch = i,
                      .micro_batches = walks.size(),
                      .mini_batch = number,
                      .in_backward = isRunAgain()},
                     [&](const Batch& batch) { return pipeline.stages[j]->forward(batch); });
  }
  if (!copies.empty()) refuseWritesToOtherInputs(input.tensors, copies, versions);
  std::vector<Batch> outputs;
  for (StageWalk& walk : walks)
    outputs.push_back(std::move(walk.batch));
  return gather(outputs, History::kRecord).batch;
}

std::vector<at::Tensor> gradientsWithGraph(const MiniBatch& run,
                                           const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted) {
  const std::vector<at::Tensor>& parameters = run.context().parameters.all;
  run.context().parameters.checkVersions();
  TORCH_CHECK(
      run.inputsAreUnchanged(),
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: an input of a Pipe, whose stages have to run again with a graph. Clone "
      "the input, or call backward() without create_graph");
  const GradientBoundary boundary(parameters);
  const InputAliases given(inputs);

  std::vector<std::vector<at::Tensor>> pieces =
      scatter(given.aliases, run.input().how, run.input().chunks, History::kRecord);
  const auto& traits = run.context().pipeline.traits;
  const bool written = std::any_of(traits.begin(), traits.end(), [](const StageTraits& stage) {
    return stage.input() == InputTrait::kWrites;
  });
  if (written) copy(pieces);
  std::vector<std::vector<at::Tensor>> outputs;
  for (const auto i : c10::irange(pieces.size()))
    outputs.push_back(runAgain(run, i, std::move(pieces[i])));

  autograd::edge_list roots;
  autograd::variable_list root_grads;
  for (const auto s : c10::irange(grads.size())) {
    if (!grads[s].defined()) continue;
    for (GradPiece& piece : split(run.sources()[s], grads[s])) {
      const at::Tensor& output = outputs[piece.micro_batch][piece.tensor];
      if (!output.requires_grad()) continue;
      roots.push_back(autograd::impl::gradient_edge(output));
      root_grads.push_back(std::move(piece.grad));
    }
  }
  autograd::edge_list ends;
  std::vector<std::size_t> places;  // in the result, per end
  for (const auto k : c10::irange(inputs.size())) {
    if (!wanted.inputs[k] || !given.ends[k].is_valid()) continue;
    ends.push_back(given.ends[k]);
    places.push_back(k);
  }
  for (const auto p : c10::irange(parameters.size())) {
    if (!wanted.parameters[p]) continue;
    ends.push_back(boundary.edges()[p]);
    places.push_back(inputs.size() + p);
  }
  std::vector<at::Tensor> result(inputs.size() + parameters.size());
  if (roots.empty() || ends.empty()) return result;
  autograd::variable_list found =
      runGraph(roots, root_grads, /*keep_graph=*/true, /*create_graph=*/true, ends);
  for (const auto e : c10::irange(places.size()))
    result[places[e]] = std::move(found[e]);
  return result;
}

}  // namespace weft::pipe
