#include "pipe/plain_run.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>

#include <optional>

#include "pipe/jobs.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// One micro-batch through all stages; the tensors that the last one gives.
std::vector<at::Tensor> throughStages(MiniBatch& batch, std::size_t i,
                                      std::vector<at::Tensor> tensors) {
  const Machine& machine = batch.machine();
  Batch present{std::move(tensors), batch.input().structure};
  SkipPort port(machine.routes.size());
  for (const auto j : c10::irange(batch.stages())) {
    const c10::Device device = machine.devices[j];
    for (at::Tensor& tensor : present.tensors)
      tensor = moved(tensor, device);
    for (const std::size_t route : machine.incoming[j]) {
      port.put(route, moved(port.take(route).value_or(at::Tensor()), device));
    }
    std::optional<RngReplay> replay;
    if (batch.cell(i, j).rng()) replay.emplace(*batch.cell(i, j).rng(), device);
    const StageContext context{j, i, batch.microBatches(), false, true, &port};
    const StageContextGuard guard(context);
    present = machine.stages[j]->forward(present);
  }
  return std::move(present.tensors);
}

// Each input's alias behind a node of its own, where inner gradients are taken without calling the
// hooks of what was before it.
struct Inputs {
  Inputs(const std::vector<at::Tensor>& tensors, bool copied) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.requires_grad()) {
        aliases.push_back(tensor.detach());
        ends.emplace_back();
        continue;
      }
      auto node = makeNode<IdentityNode>();
      node->add_next_edge(autograd::impl::gradient_edge(tensor));
      const at::Tensor alias = aliasBehind(tensor, node);
      aliases.push_back(copied ? alias.clone() : alias);
      ends.emplace_back(NodePtr(std::move(node)), 0);
    }
  }
  std::vector<at::Tensor> aliases;
  autograd::edge_list ends;
};

}  // namespace

std::vector<at::Tensor> gradientsWithGraph(MiniBatch& batch, const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted) {
  const AmbienceGuard ambience(batch.setting().ambience);
  const NoAutocastCache no_cache;
  const Gates gates(batch.parameters());
  const InputHabit habit = batch.machine().habits[0].input.load(std::memory_order_relaxed);
  const Inputs given(inputs, habit == InputHabit::kWrites);

  std::vector<std::vector<at::Tensor>> outputs;
  std::vector<std::vector<at::Tensor>> chunks;
  for (const auto k : c10::irange(inputs.size())) {
    chunks.push_back(batch.input().how[k] == Scatter::kChunk
                         ? given.aliases[k].chunk(static_cast<std::int64_t>(batch.input().chunks))
                         : std::vector<at::Tensor>(batch.microBatches(), given.aliases[k]));
  }
  for (const auto i : c10::irange(batch.microBatches())) {
    std::vector<at::Tensor> tensors;
    for (auto& chunk : chunks)
      tensors.push_back(chunk[i]);
    outputs.push_back(throughStages(batch, i, std::move(tensors)));
  }

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
    if (!wanted.inputs[k]) continue;
    ends.push_back(given.ends[k]);
    places.push_back(k);
  }
  for (const auto p : c10::irange(batch.parameters().size())) {
    if (!wanted.parameters[p]) continue;
    ends.push_back(gates.edges()[p]);
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
