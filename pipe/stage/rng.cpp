#include "pipe/stage/rng.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "pipe/data/device_copier.h"

namespace weft::pipe {

namespace {

// A task that begins to draw in its middle may hold a lock that an earlier task waits for: then its
// turn never comes. One that waits before it begins holds none.
constexpr std::chrono::seconds kTurnTimeout{60};
constexpr std::chrono::hours kNoTimeout{24 * 365};

thread_local RngScope* t_scope = nullptr;

void locked(at::Generator generator, const auto& action) {
  const std::lock_guard lock(generator.mutex());
  action(generator);
}

}  // namespace

const RngStates::Saved* RngStates::find(const at::Generator& generator) const {
  const auto it = std::find_if(states_.begin(), states_.end(),
                               [&](const Saved& saved) { return saved.generator == generator; });
  return it == states_.end() ? nullptr : &*it;
}

bool RngStates::save(const at::Generator& generator) {
  if (find(generator) != nullptr) return false;
  locked(generator, [&](at::Generator& held) { states_.push_back({held, held.get_state(), {}}); });
  return true;
}

void RngStates::restore(const at::Generator& generator) const {
  const Saved* const saved = find(generator);
  if (saved == nullptr) return;
  locked(generator, [&](at::Generator& held) { held.set_state(saved->state); });
}

void RngStates::restoreAll() const {
  for (const Saved& saved : states_)
    restore(saved.generator);
}

void RngStates::saveEnds() {
  for (Saved& saved : states_) {
    if (!saved.generator.device().is_cpu()) continue;
    locked(saved.generator, [&](at::Generator& held) { saved.end = held.get_state(); });
  }
}

bool RngStates::endAsSaved(const RngStates& used) const {
  return std::all_of(states_.begin(), states_.end(), [&](const Saved& saved) {
    if (!saved.end.defined() || used.find(saved.generator) == nullptr) return true;
    at::Tensor now;
    locked(saved.generator, [&](at::Generator& held) { now = held.get_state(); });
    return std::memcmp(now.const_data_ptr(), saved.end.const_data_ptr(), now.nbytes()) == 0;
  });
}

RngScope::RngScope(const RngTurn& turn, c10::Device device, Purpose purpose, const RngStates* then,
                   bool expected)
    : turn_(turn), purpose_(purpose), then_(then), enclosing_(t_scope) {
  if (expected) awaitTurn(kNoTimeout);
  if (purpose != Purpose::kDraw && isAccelerator(device))
    begin(at::globalContext().defaultGenerator(device));
  t_scope = this;
}

RngScope::~RngScope() {
  t_scope = enclosing_;
  if (purpose_ == Purpose::kRepeat) before_.restoreAll();
}

void RngScope::awaitTurn(std::chrono::seconds at_most) {
  if (turn_.order == nullptr || turn_.order->isTurnOf(turn_.task)) return;
  bool came = false;
  turn_.hooks->await([&] { came = turn_.order->awaitTurnOf(turn_.task, at_most); });
  TORCH_CHECK(
      came,
      "a stage of a Pipe began to use a random number generator, which it had not done when "
      "it ran last, and its turn to do so did not come within ",
      at_most.count(),
      " s: it may hold a lock that another stage waits for. Run the mini-batch again: from now on "
      "the stage waits before it begins.");
}

void RngScope::touch(const at::Generator& generator) {
  touched_ = true;
  awaitTurn(kTurnTimeout);  // then no other task of this job is behind it
  if (turn_.outside != nullptr) turn_.outside->touch(generator);
  begin(generator);
}

// Before the first use of it here.
void RngScope::begin(const at::Generator& generator) {
  if (purpose_ == Purpose::kDraw || !before_.save(generator)) return;
  if (then_ != nullptr) then_->restore(generator);
}

RngStates RngScope::take() {
  before_.saveEnds();
  return std::move(before_);
}

void RngScope::checkRepeated(std::size_t stage) const {
  TORCH_CHECK(then_ == nullptr || then_->endAsSaved(before_), "stage ", stage,
              " of a Pipe had to run again for the backward, and did not draw the random numbers "
              "of its first run: another thread or another Pipe of this process has used or seeded "
              "the same generator while the stage ran, or the stage draws otherwise when it runs "
              "again. Let them draw from a torch.Generator of their own, or use "
              "checkpoint=\"never\".");
}

RngScope* currentRngScope() { return t_scope; }

void touchGenerator(const at::Generator& generator) {
  if (t_scope != nullptr && generator.defined() && generator.device().is_cpu()) {
    t_scope->touch(generator);
  }
}

namespace {

bool isGenerator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

// Stands before a random operator's kernel, whatever the backend.
void beforeDraw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (t_scope != nullptr) {
    const auto& arguments = op.schema().arguments();
    const c10::IValue* given = nullptr;
    for (std::size_t k = 0; k < arguments.size(); ++k) {
      const c10::IValue& value = torch::jit::peek(*stack, k, arguments.size());
      if (value.isGenerator()) given = &value;
    }
    if (given != nullptr) {
      touchGenerator(given->toGenerator());
    } else if (keys.highestBackendKey() == c10::BackendComponent::CPUBit) {
      touchGenerator(at::detail::getDefaultCPUGenerator());
    }
  }
  using c10::DispatchKeySet;
  op.redispatchBoxed(
      keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
}

// On a CPU. False also of an operator whose backend is selected by a kernel of its own.
bool drawsUnwatched(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) {
    return false;
  }
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), isGenerator);
}

}  // namespace

void watchRandomOperators() {
  static std::mutex mutex;  // two threads would watch the same operators
  const std::lock_guard lock(mutex);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !drawsUnwatched(*op)) continue;
    // Never removed: an operator may run in any thread at any time.
    new c10::RegistrationHandleRAII(dispatcher.registerImpl(
        name, c10::DispatchKey::BackendSelect,
        c10::KernelFunction::makeFromBoxedFunction<&beforeDraw>(), std::nullopt, nullptr,
        "weft::pipe, random numbers in the schedule's order"));
  }
}

}  // namespace weft::pipe
