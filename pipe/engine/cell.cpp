#include "pipe/engine/cell.h"

#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <typeinfo>

#include "pipe/data/memory.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

std::uint32_t versionOf(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? 0 : tensor._version();
}

bool mayHaveGradient(const at::Tensor& tensor) {
  return tensor.defined() && autograd::isDifferentiableType(tensor.scalar_type());
}

bool isSame(const Wire& one, const Wire& other) {
  return one.value.defined() && one.value.is_same(other.value);
}

// Written by every run, so that it is not fetched for nothing.
void learn(std::atomic<bool>& trait, bool now) {
  if (trait.load(std::memory_order_relaxed) != now) trait.store(now, std::memory_order_relaxed);
}

}  // namespace

void markAliases(std::vector<Wire>& wires) {
  for (std::size_t k = 1; k < wires.size(); ++k) {
    for (std::size_t other = 0; other < k; ++other) {
      if (isSame(wires[other], wires[k]) || !mayOverlap(wires[other].value, wires[k].value)) {
        continue;
      }
      wires[k].sharing = wires[other].sharing = Sharing::kAliased;
    }
  }
}

Cell::Output Cell::run(const CellSetting& setting, std::size_t stage, std::size_t micro_batch,
                       Input input, bool checkpoint, const RngTurn& turn) {
  stage_ = stage;
  micro_batch_ = micro_batch;
  input_ = std::move(input);
  bool wanted = setting.grad && !setting.boundary[stage].empty();
  for (const Wire& wire : input_.wires)
    wanted |= setting.grad && wire.differentiable;
  checkpointed_ = checkpoint && wanted;

  auto& uses_rng = setting.pipeline.traits[stage].forward_uses_rng[setting.training ? 1 : 0];
  RngScope scope(turn, setting.pipeline.devices[stage],
                 setting.grad ? RngScope::Purpose::kRecord : RngScope::Purpose::kDraw, nullptr,
                 uses_rng.load(std::memory_order_relaxed));
  Output output = perform(setting, checkpointed_ ? Pass::kCheckpoint : Pass::kGraph);
  learn(uses_rng, drew_ = scope.touched());
  if (RngStates states = scope.take(); !states.empty()) {
    rng_ = std::make_unique<const RngStates>(std::move(states));
  }
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
    input_versions_.clear();
    for (const Wire& wire : input_.wires)
      input_versions_.push_back(versionOf(wire.value));
  } else {
    state_ = CellState::kGraph;
    input_.wires.clear();
    input_.structure = nullptr;
  }
  return output;
}

void Cell::recompute(const CellSetting& setting, const RngTurn& turn) {
  TORCH_INTERNAL_ASSERT(state_ == CellState::kCheckpointed);
  for (const auto k : c10::irange(input_.wires.size())) {
    TORCH_CHECK(versionOf(input_.wires[k].value) == input_versions_[k],
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: an input of stage ",
                stage_,
                " of a Pipe, which has to run again for the backward. Clone the input, or call "
                "backward() before it is changed.");
  }
  const AmbienceGuard thread_state(setting.thread_state);
  const at::AutoGradMode grad(true);
  const RngScope scope(turn, setting.pipeline.devices[stage_], RngScope::Purpose::kRepeat,
                       rng_.get(), drew_);
  perform(setting, Pass::kRecompute);
  state_ = CellState::kGraph;
}

Cell::Output Cell::perform(const CellSetting& setting, Pass pass) {
  const std::vector<at::Tensor> given = aliases(setting, pass);
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& tensor : given)
    versions.push_back(versionOf(tensor));
  SkipPort skips(setting.pipeline.routes.size());

  Batch result;
  {
    const at::AutoGradMode grad(pass != Pass::kCheckpoint && at::GradMode::is_enabled());
    const NoAutocastCache no_cache;
    result = call(setting, pass, given, skips);
  }
  refuseSharedWrites(setting, given, versions);
  learnInput(setting, pass, given, versions);
  TORCH_CHECK_TYPE(!result.tensors.empty(), "stage ", stage_,
                   " returned no tensor; what a partition returns must have one at least");

  Output output;
  output.payload = result.tensors.size();
  output.structure = std::move(result.structure);
  for (const std::size_t route : setting.pipeline.outgoing[stage_]) {
    result.tensors.push_back(skips.take(route).value_or(at::Tensor()));
  }
  output_edges_.clear();
  for (const auto k : c10::irange(result.tensors.size())) {
    const at::Tensor& tensor = result.tensors[k];
    const bool has_graph = tensor.defined() && tensor.requires_grad();
    output_edges_.push_back(has_graph ? autograd::impl::gradient_edge(tensor) : autograd::Edge());
    const bool differentiable =
        pass == Pass::kCheckpoint ? mayHaveGradient(tensor) : has_graph && setting.grad;
    std::size_t first = 0;  // where the same tensor stands
    while (first < k && !result.tensors[first].is_same(tensor))
      ++first;
    at::Tensor value;
    if (tensor.defined()) value = first < k ? output.wires[first].value : tensor.detach();
    output.wires.push_back({std::move(value), differentiable});
  }
  if (pass == Pass::kCheckpoint) {
    assumeGraphs(setting, output);
  } else if (setting.grad && setting.training && at::GradMode::is_enabled()) {
    learnGraphs(setting, pass, output);
  }
  if (pass != Pass::kRecompute) markSharing(setting, output);
  if (pass != Pass::kCheckpoint && setting.grad) searchLeaves(setting);
  return output;
}

std::vector<at::Tensor> Cell::aliases(const CellSetting& setting, Pass pass) {
  const InputTrait trait = setting.pipeline.traits[stage_].input.load(std::memory_order_relaxed);
  const bool with_graph = pass != Pass::kCheckpoint && setting.grad && at::GradMode::is_enabled();
  auto node = makeNode<IdentityNode>();
  input_slot_.assign(input_.wires.size(), -1);
  std::vector<at::Tensor> given;
  given.reserve(input_.wires.size());
  std::int64_t slots = 0;
  for (const auto k : c10::irange(input_.wires.size())) {
    const Wire& wire = input_.wires[k];
    const auto first = std::find_if(input_.wires.begin(), input_.wires.end(),
                                    [&](const Wire& other) { return isSame(other, wire); }) -
                       input_.wires.begin();
    if (wire.value.defined() && first < static_cast<std::ptrdiff_t>(k)) {
      at::Tensor same = given[static_cast<std::size_t>(first)];
      given.push_back(std::move(same));
      continue;
    }
    const bool copy =
        trait != InputTrait::kReads && wire.value.defined() && isNeededAgain(setting, pass, wire);
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

// Where a stage that changes the wire, or might, gets a copy: by its own recomputation, by the
// other micro-batches, or, of the mini-batch, by the caller. Pieces of one tensor count as one
// where autograd watches for changes.
bool Cell::isNeededAgain(const CellSetting& setting, Pass pass, const Wire& wire) const {
  if (pass != Pass::kGraph || wire.sharing == Sharing::kReplicated) return true;
  return stage_ == 0 && setting.grad && (wire.differentiable || setting.micro_batches > 1);
}

std::uint64_t nextMiniBatchNumber() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Batch Cell::call(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& inputs,
                 SkipPort& skips) {
  const auto& incoming = setting.pipeline.incoming[stage_];
  for (const auto k : c10::irange(incoming.size())) {
    skips.put(incoming[k], inputs[input_.payload + k]);
  }
  StageContext context{stage_,
                       micro_batch_,
                       setting.micro_batches,
                       pass == Pass::kCheckpoint,
                       pass == Pass::kRecompute,
                       &skips,
                       setting.number,
                       setting.in_backward};
  const StageContextGuard guard(context);
  const auto payload_end = inputs.begin() + static_cast<std::ptrdiff_t>(input_.payload);
  const Batch batch{{inputs.begin(), payload_end}, input_.structure};

  at::RecordFunction label(at::RecordScope::USER_SCOPE);
  if (label.isActive()) {
    label.before("weft::pipe." + std::string(pass == Pass::kRecompute ? "R" : "F") +
                 std::to_string(stage_) + ".mb" + std::to_string(micro_batch_));
  }
  Stage& stage = *setting.pipeline.stages[stage_];
  const std::lock_guard alone(setting.pipeline.in_use[stage_]);
  return pass == Pass::kRecompute ? stage.forwardAgain(batch, *setting.tensors[stage_])
                                  : stage.forward(batch);
}

std::uint32_t Cell::inputKinds() const {
  std::uint32_t kinds = 1U << 31;
  for (const auto k : c10::irange(input_.wires.size())) {
    if (input_.wires[k].differentiable) kinds |= 1U << (k % 31);
  }
  return kinds;
}

void Cell::assumeGraphs(const CellSetting& setting, Output& output) {
  taken_graphless_ = 0;
  const std::uint64_t trait =
      setting.pipeline.traits[stage_].graphless.load(std::memory_order_relaxed);
  if (static_cast<std::uint32_t>(trait >> 32) != inputKinds()) return;
  const auto graphless = static_cast<std::uint32_t>(trait);
  const auto isTaken = [&](std::size_t k) { return k < 32 && (graphless >> k & 1U) != 0; };
  bool any =
      false;  // without one the stage would not run again, and never be found to have changed
  for (const auto k : c10::irange(output.wires.size()))
    any |= output.wires[k].differentiable && !isTaken(k);
  for (const auto k : c10::irange(any ? output.wires.size() : 0)) {
    if (!output.wires[k].differentiable || !isTaken(k)) continue;
    output.wires[k].differentiable = false;
    taken_graphless_ |= 1U << k;
  }
}

void Cell::learnGraphs(const CellSetting& setting, Pass pass, const Output& output) {
  std::uint32_t graphless = 0;
  for (std::size_t k = 0; k < output.wires.size() && k < 32; ++k) {
    if (mayHaveGradient(output.wires[k].value) && !output.wires[k].differentiable) {
      graphless |= 1U << k;
    }
  }
  auto& trait = setting.pipeline.traits[stage_].graphless;
  const std::uint64_t now = static_cast<std::uint64_t>(inputKinds()) << 32 | graphless;
  if (trait.load(std::memory_order_relaxed) != now) trait.store(now, std::memory_order_relaxed);
  TORCH_CHECK(pass != Pass::kRecompute || (taken_graphless_ & ~graphless) == 0, "stage ", stage_,
              " gave an output that requires a gradient, which it had not done before, so its "
              "gradient was not asked for. Run the mini-batch again: from now on it is.");
}

// A value goes to one place at most without anybody noticing a change of it.
void Cell::markSharing(const CellSetting& setting, Output& output) const {
  const auto& outgoing = setting.pipeline.outgoing[stage_];
  const auto destination = [&](std::size_t k) {
    return k < output.payload ? stage_ + 1
                              : setting.pipeline.routes[outgoing[k - output.payload]].to;
  };
  markAliases(output.wires);
  for (const auto k : c10::irange(output.wires.size())) {
    Wire& wire = output.wires[k];
    for (const auto other : c10::irange(k)) {
      if (!isSame(wire, output.wires[other]) || destination(k) == destination(other)) continue;
      wire.sharing = output.wires[other].sharing = Sharing::kAliased;
    }
    const void* const memory = memoryOf(wire.value);
    if (memory == nullptr) continue;
    for (const Wire& input : input_.wires) {
      if (input.sharing != Sharing::kNone && memoryOf(input.value) == memory) {
        wire.sharing = input.sharing;
      }
    }
    if (!setting.grad) continue;
    for (const at::Tensor& tensor : setting.tensors[stage_]->tensors) {
      if (tensor.requires_grad() && memoryOf(tensor) == memory) wire.sharing = Sharing::kAliased;
    }
  }
}

void Cell::refuseSharedWrites(const CellSetting& setting, const std::vector<at::Tensor>& given,
                              const std::vector<std::uint32_t>& versions) const {
  if (!setting.grad && !setting.pipeline.crosses)
    return;  // it is all one memory, as without a Pipe
  for (const auto k : c10::irange(given.size())) {
    if (input_.wires[k].sharing != Sharing::kAliased) continue;
    TORCH_CHECK(
        versionOf(given[k]) == versions[k], "stage ", stage_, " changed ",
        k < input_.payload ? "its input " : "the skip that it popped, value ", k,
        " in place, and its memory also belongs to another output, to a skip under way, or to a "
        "parameter of a stage before it. Their gradients would be wrong: clone it where it is "
        "made, or work out of place (inplace=False).");
  }
}

void Cell::learnInput(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& given,
                      const std::vector<std::uint32_t>& versions) {
  if (pass == Pass::kRecompute) return;
  bool watched = false;
  bool written = false;
  for (const auto k : c10::irange(given.size())) {
    const bool counts = isNeededAgain(setting, pass, input_.wires[k]);
    watched |= counts;
    written |= counts && versionOf(given[k]) != versions[k];
  }
  if (!watched) return;
  auto& trait = setting.pipeline.traits[stage_].input;
  const InputTrait known = trait.load(std::memory_order_relaxed);
  if (written) {
    trait.store(InputTrait::kWrites, std::memory_order_relaxed);
  } else if (known == InputTrait::kUnknown) {
    trait.store(InputTrait::kReads, std::memory_order_relaxed);
  }
  TORCH_CHECK(
      known != InputTrait::kReads || !written, "stage ", stage_,
      " changed its input in place, which it had not done before, so Weft kept no copy of it "
      "for the backward. Clone the input in the stage; or just run the mini-batch again: "
      "from now on copies are kept.");
}

// Gradients reach the inputs and the registered parameters. A tensor that requires one and is
// neither would silently get none.
void Cell::searchLeaves(const CellSetting& setting) const {
  ska::flat_hash_set<autograd::Node*> seen;
  std::vector<autograd::Node*> rest;
  const auto& boundary = checkpointed_ ? setting.gates_again : setting.boundary;
  for (const autograd::Edge& edge : boundary[stage_])
    seen.insert(edge.function.get());
  if (input_node_) seen.insert(input_node_.get());
  const auto visit = [&](const autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second) {
      rest.push_back(edge.function.get());
    }
  };
  for (const autograd::Edge& edge : output_edges_)
    visit(edge);
  while (!rest.empty()) {
    autograd::Node* const node = rest.back();
    rest.pop_back();
    TORCH_CHECK(
        typeid(*node) != typeid(autograd::AccumulateGrad), "stage ", stage_,
        " uses a tensor that requires a gradient and is neither an input of it nor one of its "
        "registered parameters. It would get no gradient: register it with nn.Parameter, "
        "or pass it as an input.");
    for (const autograd::Edge& edge : node->next_edges())
      visit(edge);
  }
}

Cell::Gradients Cell::backward(const CellSetting& setting, bool want_inputs,
                               const autograd::edge_list& wanted_gates, bool keep_graph,
                               const RngTurn& turn) {
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
    auto& uses_rng = setting.pipeline.traits[stage_].backward_uses_rng;
    const RngScope scope(turn, setting.pipeline.devices[stage_], RngScope::Purpose::kDraw, nullptr,
                         uses_rng.load(std::memory_order_relaxed));
    const bool keep = keep_graph && !checkpointed_;
    autograd::variable_list found = autograd::Engine::get_default_engine().execute(
        roots, root_grads, keep, /*create_graph=*/false, /*accumulate_grad=*/false, ends);
    learn(uses_rng, scope.touched());
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
