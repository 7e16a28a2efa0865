#include "pipe/cell/stage_traits.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

namespace weft::pipe {

namespace {

constexpr std::size_t kMaskBits = 32;

// Bit k: input k, modulo 31, is differentiable. The highest bit is always set: 0 is no kind.
std::uint32_t kindsOf(const Activations& input) {
  std::uint32_t kinds = 1U << 31;
  for (const auto k : c10::irange(input.values.size())) {
    if (input.values[k].differentiable) kinds |= 1U << (k % 31);
  }
  return kinds;
}

}  // namespace

bool mayHaveGradient(const at::Tensor& tensor) {
  return tensor.defined() && torch::autograd::isDifferentiableType(tensor.scalar_type());
}

void StageTraits::learnInput(bool written, std::size_t stage) {
  const InputTrait known = input();
  if (written) {
    learn(input_, InputTrait::kWrites);
  } else if (known == InputTrait::kUnknown) {
    learn(input_, InputTrait::kReads);
  }
  TORCH_CHECK(
      known != InputTrait::kReads || !written, "stage ", stage,
      " changed its input in place, which it had not done before, so Weft kept no copy of it "
      "for the backward. Clone the input in the stage; or run the mini-batch again, for from "
      "now on copies are kept: with new tensors where the stage gets the caller's or views of "
      "them, as the first does, because these have been changed.");
}

std::uint32_t StageTraits::assumeGraphs(const Activations& input, Activations& output) const {
  const std::uint64_t known = graphless_.load(std::memory_order_relaxed);
  if (static_cast<std::uint32_t>(known >> 32) != kindsOf(input)) return 0;
  const auto graphless = static_cast<std::uint32_t>(known);
  std::uint32_t assumed = 0;
  bool any = false;
  for (const auto k : c10::irange(output.values.size())) {
    if (!output.values[k].differentiable) continue;
    const bool is_assumed = k < kMaskBits && (graphless >> k & 1U) != 0;
    if (is_assumed) assumed |= 1U << k;
    any |= !is_assumed;
  }
  // Without any graph the stage would not run again, and its change would never be noticed.
  if (!any) return 0;
  for (const auto k : c10::irange(std::min(kMaskBits, output.values.size()))) {
    if ((assumed >> k & 1U) != 0) output.values[k].differentiable = false;
  }
  return assumed;
}

void StageTraits::learnGraphs(const Activations& input, const Activations& output,
                              std::uint32_t assumed, std::size_t stage) {
  std::uint32_t graphless = 0;
  for (const auto k : c10::irange(std::min(kMaskBits, output.values.size()))) {
    const Activation& value = output.values[k];
    if (mayHaveGradient(value.value) && !value.differentiable) graphless |= 1U << k;
  }
  learn(graphless_, static_cast<std::uint64_t>(kindsOf(input)) << 32 | graphless);
  TORCH_CHECK((assumed & ~graphless) == 0, "stage ", stage,
              " gave an output that requires a gradient, which it had not done before, so its "
              "gradient was not computed. Run the mini-batch again: from now on it is.");
}

}  // namespace weft::pipe
