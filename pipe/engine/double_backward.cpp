#include "pipe/engine/double_backward.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>

#include "pipe/schedule/clock.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// One micro-batch on its way through the stages.
class Walk {
 public:
  Walk(PipelineContext& pipeline, Batch input)
      : present(std::move(input)), pipeline_(pipeline), port_(pipeline.routes.size()) {}

  // `run`: calls the stage with a batch.
  void through(StageContext context, const auto& run) {
    const c10::Device device = pipeline_.devices[context.stage];
    for (at::Tensor& tensor : present.tensors)
      tensor = moved(tensor, device);
    for (const std::size_t route : pipeline_.incoming[context.stage]) {
      port_.put(route, moved(port_.take(route).value_or(at::Tensor()), device));
    }
    context.skips = &port_;
    const StageContextGuard guard(context);
    const std::lock_guard alone(pipeline_.in_use[context.stage]);
    present = run(present);
    TORCH_CHECK_TYPE(!present.tensors.empty(), "stage ", context.stage,
                     " returned no tensor; what a partition returns must have one at least");
  }

  Batch present;

 private:
  PipelineContext& pipeline_;
  SkipPort port_;
};

// One micro-batch through all stages, as it went in the forward; the tensors that the last one
// gives.
std::vector<at::Tensor> throughStages(ForwardRun& batch, std::size_t i,
                                      std::vector<at::Tensor> tensors) {
  PipelineContext& pipeline = batch.setting().pipeline;
  const AmbienceGuard thread_state(batch.setting().thread_state);
  const NoAutocastCache no_cache;
  Walk walk(pipeline, {std::move(tensors), batch.input().structure});
  for (const auto j : c10::irange(batch.stages())) {
    const RngScope scope({}, pipeline.devices[j], RngScope::Purpose::kRepeat,
                         batch.cell(i, j).rng(),
                         /*expected=*/false);
    const StageContext context{j,    i,       batch.microBatches(),   false,
                               true, nullptr, batch.setting().number, true};
    walk.through(context, [&](const Batch& present) {
      return pipeline.stages[j]->forwardAgain(present, *batch.setting().tensors[j]);
    });
  }
  return std::move(walk.present.tensors);
}

// Each input's alias behind a node of its own, where inner gradients are taken without calling the
// hooks of what was before it.
struct Inputs {
  explicit Inputs(const std::vector<at::Tensor>& tensors) {
    for (const auto k : c10::irange(tensors.size())) {
      const at::Tensor& tensor = tensors[k];
      const auto same = std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& other) {
        return other.is_same(tensor);
      });
      const auto first = static_cast<std::size_t>(same - tensors.begin());
      if (first < k || !tensor.requires_grad()) {
        at::Tensor alias = first < k ? aliases[first] : tensor.detach();
        aliases.push_back(std::move(alias));
        ends.emplace_back();  // the first one's has the gradient of all
        continue;
      }
      auto node = makeNode<IdentityNode>();
      node->add_next_edge(autograd::impl::gradient_edge(tensor));
      aliases.push_back(aliasBehind(tensor, node));
      ends.emplace_back(NodePtr(std::move(node)), 0);
    }
  }
  std::vector<at::Tensor> aliases;
  autograd::edge_list ends;
};

// For a first stage that changes its input in place: the mini-batch stays as it was, and pieces of
// one tensor count as one where autograd watches for changes.
void copy(std::vector<std::vector<at::Tensor>>& pieces) {
  for (std::vector<at::Tensor>& tensors : pieces) {
    const std::vector<at::Tensor> before = tensors;
    for (const auto k : c10::irange(tensors.size())) {
      const auto same = std::find_if(before.begin(), before.end(), [&](const at::Tensor& other) {
        return other.is_same(before[k]);
      });
      const auto first = static_cast<std::size_t>(same - before.begin());
      tensors[k] = first < k ? at::Tensor(tensors[first]) : before[k].clone();
    }
  }
}

}  // namespace

bool isTransformed() {
  return c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

Batch plainForward(PipelineContext& pipeline, const ForwardInput& input) {
  std::vector<std::vector<at::Tensor>> pieces =
      scatter(input.tensors, input.how, input.chunks, History::kRecord);
  const InputTrait trait = pipeline.traits[0].input.load(std::memory_order_relaxed);
  if (trait != InputTrait::kReads && (at::GradMode::is_enabled() || isTransformed())) copy(pieces);
  const std::uint64_t number = nextMiniBatchNumber();
  std::vector<Walk> walks;
  for (std::vector<at::Tensor>& tensors : pieces)
    walks.emplace_back(pipeline, Batch{std::move(tensors), input.structure});
  for (const auto [i, j] : clockOrder(walks.size(), pipeline.stages.size())) {
    walks[i].through({j, i, walks.size(), false, false, nullptr, number, isRunAgain()},
                     [&](const Batch& present) { return pipeline.stages[j]->forward(present); });
  }
  std::vector<Batch> outputs;
  for (Walk& walk : walks)
    outputs.push_back(std::move(walk.present));
  return gather(outputs, History::kRecord).batch;
}

std::vector<at::Tensor> gradientsWithGraph(ForwardRun& batch, const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted) {
  batch.checkParameters();
  const GradientBoundary boundary(batch.parameters());
  const InputTrait trait = batch.pipeline().traits[0].input.load(std::memory_order_relaxed);
  const Inputs given(inputs);

  std::vector<std::vector<at::Tensor>> pieces =
      scatter(given.aliases, batch.input().how, batch.input().chunks, History::kRecord);
  if (trait == InputTrait::kWrites) copy(pieces);
  std::vector<std::vector<at::Tensor>> outputs;
  for (const auto i : c10::irange(batch.microBatches()))
    outputs.push_back(throughStages(batch, i, std::move(pieces[i])));

  autograd::edge_list roots;
  autograd::variable_list root_grads;
  for (const auto s : c10::irange(grads.size())) {
    if (!grads[s].defined()) continue;
    for (GradPiece& piece : split(batch.sources()[s], grads[s])) {
      const at::Tensor& output = outputs[piece.micro_batch][piece.tensor];
      if (!output.requires_grad()) continue;
      roots.push_back(autograd::impl::gradient_edge(output));
      root_grads.push_back(std::move(piece.grad));
    }
  }
  autograd::edge_list ends;
  std::vector<std::size_t> places;
  for (const auto k : c10::irange(inputs.size())) {
    if (!wanted.inputs[k] || !given.ends[k].is_valid()) continue;
    ends.push_back(given.ends[k]);
    places.push_back(k);
  }
  for (const auto p : c10::irange(batch.parameters().size())) {
    if (!wanted.parameters[p]) continue;
    ends.push_back(boundary.edges()[p]);
    places.push_back(inputs.size() + p);
  }
  std::vector<at::Tensor> result(inputs.size() + batch.parameters().size());
  if (roots.empty() || ends.empty()) return result;
  autograd::variable_list found = autograd::Engine::get_default_engine().execute(
      roots, root_grads, /*keep_graph=*/true, /*create_graph=*/true, /*accumulate_grad=*/false,
      ends);
  for (const auto e : c10::irange(places.size()))
    result[places[e]] = std::move(found[e]);
  return result;
}

}  // namespace weft::pipe
