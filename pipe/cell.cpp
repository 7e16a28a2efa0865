#include "pipe/cell.h"

#include <ATen/record_function.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <atomic>
#include <string>
#include <unordered_set>

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

std::uint32_t versionOf(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? 0 : tensor._version();
}

bool mayHaveGradient(const at::Tensor& tensor) {
  return tensor.defined() && autograd::isDifferentiableType(tensor.scalar_type());
}

}  // namespace

Cell::Output Cell::run(const CellSetting& setting, std::size_t stage, std::size_t micro_batch,
                       Input input, bool checkpoint) {
  stage_ = stage;
  micro_batch_ = micro_batch;
  input_ = std::move(input);
  bool wanted = setting.grad && !setting.gates[stage].empty();
  for (const Wire& wire : input_.wires)
    wanted |= setting.grad && wire.differentiable;
  checkpointed_ = checkpoint && wanted;

  Output output = perform(setting, checkpointed_ ? Pass::kCheckpoint : Pass::kGraph);
  bool any = false;
  for (const Wire& wire : output.wires)
    any |= wire.differentiable;
  TORCH_CHECK(
      !any || wanted, "stage ", stage,
      " gave an output that requires a gradient, but neither its inputs nor its registered "
      "parameters do: a tensor used inside it must be a registered parameter, or an input.");
  if (!any) {
    drop();
  } else if (checkpointed_) {
    state_ = CellState::kCheckpointed;
  } else {
    state_ = CellState::kGraph;
    input_.wires.clear();
    input_.structure = nullptr;
  }
  return output;
}

void Cell::recompute(const CellSetting& setting) {
  TORCH_INTERNAL_ASSERT(state_ == CellState::kCheckpointed);
  const AmbienceGuard ambience(setting.ambience);
  const at::AutoGradMode grad(true);
  std::optional<RngReplay> replay;
  if (rng_) replay.emplace(*rng_, setting.machine.devices[stage_]);
  perform(setting, Pass::kRecompute);
  state_ = CellState::kGraph;
}

Cell::Output Cell::perform(const CellSetting& setting, Pass pass) {
  const std::vector<at::Tensor> given = aliases(setting, pass);
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& tensor : given)
    versions.push_back(versionOf(tensor));
  SkipPort skips(setting.machine.routes.size());

  std::optional<RngState> before;
  if (pass != Pass::kRecompute) before.emplace(RngState::now(setting.machine.devices[stage_]));
  Batch result;
  {
    const at::AutoGradMode grad(pass != Pass::kCheckpoint && at::GradMode::is_enabled());
    const NoAutocastCache no_cache;
    result = call(setting, pass, given, skips);
  }
  if (before) learnDraws(setting, *before);
  learnInput(setting, pass, given, versions);
  TORCH_CHECK_TYPE(!result.tensors.empty(), "stage ", stage_,
                   " returned no tensor; what a partition returns must have one at least");

  Output output;
  output.payload = result.tensors.size();
  output.structure = std::move(result.structure);
  for (const std::size_t route : setting.machine.outgoing[stage_]) {
    result.tensors.push_back(skips.take(route).value_or(at::Tensor()));
  }
  output_edges_.clear();
  for (at::Tensor& tensor : result.tensors) {
    const bool has_graph = tensor.defined() && tensor.requires_grad();
    output_edges_.push_back(has_graph ? autograd::impl::gradient_edge(tensor) : autograd::Edge());
    const bool differentiable =
        pass == Pass::kCheckpoint ? mayHaveGradient(tensor) : has_graph && setting.grad;
    output.wires.push_back({tensor.defined() ? tensor.detach() : tensor, differentiable});
  }
  if (pass != Pass::kCheckpoint && setting.grad) searchLeaves(setting);
  return output;
}

std::vector<at::Tensor> Cell::aliases(const CellSetting& setting, Pass pass) {
  const InputHabit habit = setting.machine.habits[stage_].input.load(std::memory_order_relaxed);
  const bool with_graph = pass != Pass::kCheckpoint && setting.grad && at::GradMode::is_enabled();
  // Where the input is needed again, after a stage that changes it or might.
  const bool needed_again = pass != Pass::kGraph || stage_ == 0;
  auto node = makeNode<IdentityNode>();
  input_slot_.assign(input_.wires.size(), -1);
  std::vector<at::Tensor> given;
  given.reserve(input_.wires.size());
  std::int64_t slots = 0;
  for (const auto k : c10::irange(input_.wires.size())) {
    const Wire& wire = input_.wires[k];
    const bool copy = needed_again && habit != InputHabit::kReads && wire.value.defined() &&
                      (pass != Pass::kGraph || wire.differentiable);
    at::Tensor value = copy ? wire.value.detach().clone() : wire.value;
    if (with_graph && wire.differentiable) {
      input_slot_[k] = slots++;
      given.push_back(aliasBehind(value, node));
    } else {
      given.push_back(value.defined() && !copy ? value.detach() : std::move(value));
    }
  }
  input_node_ = slots == 0 ? NodePtr() : NodePtr(std::move(node));
  return given;
}

std::uint64_t nextMiniBatchNumber() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Batch Cell::call(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& inputs,
                 SkipPort& skips) {
  const auto& incoming = setting.machine.incoming[stage_];
  for (const auto k : c10::irange(incoming.size())) {
    skips.put(incoming[k], inputs[input_.payload + k]);
  }
  StageContext context{stage_,
                       micro_batch_,
                       setting.micro_batches,
                       pass == Pass::kCheckpoint,
                       pass == Pass::kRecompute,
                       &skips,
                       setting.number};
  const StageContextGuard guard(context);
  const auto payload_end = inputs.begin() + static_cast<std::ptrdiff_t>(input_.payload);
  const Batch batch{{inputs.begin(), payload_end}, input_.structure};

  at::RecordFunction label(at::RecordScope::USER_SCOPE);
  if (label.isActive()) {
    label.before("weft::pipe." + std::string(pass == Pass::kRecompute ? "R" : "F") +
                 std::to_string(stage_) + ".mb" + std::to_string(micro_batch_));
  }
  return setting.machine.stages[stage_]->forward(batch);
}

void Cell::learnInput(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& given,
                      const std::vector<std::uint32_t>& versions) {
  if (pass == Pass::kRecompute || (pass == Pass::kGraph && !(stage_ == 0 && input_node_))) return;
  bool written = false;
  for (const auto k : c10::irange(given.size())) {
    const bool counts = pass == Pass::kCheckpoint || input_slot_[k] >= 0;
    written |= counts && versionOf(given[k]) != versions[k];
  }
  auto& habit = setting.machine.habits[stage_].input;
  const InputHabit known = habit.load(std::memory_order_relaxed);
  if (written) {
    habit.store(InputHabit::kWrites, std::memory_order_relaxed);
  } else if (known == InputHabit::kUnknown) {
    habit.store(InputHabit::kReads, std::memory_order_relaxed);
  }
  TORCH_CHECK(
      known != InputHabit::kReads || !written, "stage ", stage_,
      " changed its input in place, which it had not done before, so Weft kept no copy of it "
      "for the backward. Clone the input in the stage; or just run the mini-batch again: "
      "from now on copies are kept.");
}

void Cell::learnDraws(const CellSetting& setting, const RngState& before) {
  auto& habit = setting.machine.habits[stage_].draws[setting.training ? 1 : 0];
  const bool moved = before.cpuMoved();
  if (moved) {
    habit.store(RngHabit::kDraws, std::memory_order_relaxed);
  } else if (habit.load(std::memory_order_relaxed) == RngHabit::kUnknown) {
    habit.store(RngHabit::kQuiet, std::memory_order_relaxed);
  }
  const bool on_cpu = setting.machine.devices[stage_].is_cpu();
  if (setting.grad && (moved || !on_cpu)) rng_ = std::make_unique<const RngState>(before);
}

// Once per stage: gradients reach the inputs and the registered parameters. A tensor that requires
// one and is neither would silently get none.
void Cell::searchLeaves(const CellSetting& setting) {
  auto& known = setting.machine.habits[stage_].leaves_known;
  if (known.load(std::memory_order_relaxed)) return;
  std::unordered_set<autograd::Node*> seen;
  std::vector<autograd::Node*> rest;
  const auto& gates = checkpointed_ ? setting.gates_again : setting.gates;
  for (const autograd::Edge& edge : gates[stage_])
    seen.insert(edge.function.get());
  if (input_node_) seen.insert(input_node_.get());
  for (const autograd::Edge& edge : output_edges_) {
    if (edge.is_valid()) rest.push_back(edge.function.get());
  }
  while (!rest.empty()) {
    autograd::Node* const node = rest.back();
    rest.pop_back();
    if (!seen.insert(node).second) continue;
    TORCH_CHECK(
        node->name() != "torch::autograd::AccumulateGrad", "stage ", stage_,
        " uses a tensor that requires a gradient and is neither an input of it nor one of its "
        "registered parameters. It would get no gradient: register it with nn.Parameter, "
        "or pass it as an input.");
    for (const autograd::Edge& edge : node->next_edges()) {
      if (edge.is_valid()) rest.push_back(edge.function.get());
    }
  }
  known.store(true, std::memory_order_relaxed);
}

Cell::Gradients Cell::backward(bool want_inputs, const autograd::edge_list& wanted_gates,
                               bool keep_graph) {
  TORCH_INTERNAL_ASSERT(state_ == CellState::kGraph);
  const std::vector<at::Tensor> grads = std::exchange(output_grads, {});
  autograd::edge_list roots;
  autograd::variable_list root_grads;
  for (const auto k : c10::irange(grads.size())) {
    if (!grads[k].defined() || !output_edges_[k].is_valid()) continue;
    roots.push_back(output_edges_[k]);
    root_grads.push_back(grads[k]);
  }
  autograd::edge_list ends;
  if (want_inputs) {
    for (const std::int64_t slot : input_slot_) {
      if (slot >= 0) ends.emplace_back(input_node_, static_cast<std::uint32_t>(slot));
    }
  }
  ends.insert(ends.end(), wanted_gates.begin(), wanted_gates.end());

  const std::size_t inputs = input_slot_.size();
  Gradients result;
  result.inputs.resize(inputs);
  result.parameters.resize(wanted_gates.size());
  if (!roots.empty() && !ends.empty()) {
    at::RecordFunction label(at::RecordScope::USER_SCOPE);
    if (label.isActive()) {
      label.before("weft::pipe.B" + std::to_string(stage_) + ".mb" + std::to_string(micro_batch_));
    }
    const bool keep = keep_graph && !checkpointed_;
    autograd::variable_list found = autograd::Engine::get_default_engine().execute(
        roots, root_grads, keep, /*create_graph=*/false, /*accumulate_grad=*/false, ends);
    std::size_t next = 0;
    for (const auto k : c10::irange(inputs)) {
      if (want_inputs && input_slot_[k] >= 0) result.inputs[k] = std::move(found[next++]);
    }
    for (at::Tensor& grad : result.parameters)
      grad = std::move(found[next++]);
  }
  if (!keep_graph) {
    drop();
  } else if (checkpointed_) {
    output_edges_.clear();
    input_node_ = NodePtr();
    state_ = CellState::kCheckpointed;
  }
  return result;
}

void Cell::drop() {
  input_ = {};
  input_node_ = NodePtr();
  output_edges_.clear();
  output_grads.clear();
  rng_.reset();
  state_ = CellState::kDone;
}

}  // namespace weft::pipe
