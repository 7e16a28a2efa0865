#include "pipe/cell/activation.h"

#include <c10/util/irange.h>

#include "pipe/data/memory.h"

namespace weft::pipe {

void markAliases(std::vector<Activation>& values) {
  for (std::size_t k = 1; k < values.size(); ++k) {
    for (std::size_t other = 0; other < k; ++other) {
      const at::Tensor& one = values[other].value;
      const at::Tensor& two = values[k].value;
      if (!one.is_same(two) && mayOverlap(one, two))
        values[k].sharing = values[other].sharing = Sharing::kAliased;
    }
  }
}

void markSharing(Activations& output, const Activations& input,
                 const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& tensors,
                 std::size_t stage, const std::vector<std::size_t>& consumers) {
  const auto destination = [&](std::size_t k) {
    return k < output.payload_size ? stage + 1 : consumers[k - output.payload_size];
  };
  markAliases(output.values);
  for (const auto k : c10::irange(output.values.size())) {
    Activation& value = output.values[k];
    for (const auto other : c10::irange(k)) {
      if (value.value.is_same(output.values[other].value) && destination(k) != destination(other))
        value.sharing = output.values[other].sharing = Sharing::kAliased;
    }
    const void* const memory = memoryOf(value.value);
    if (memory == nullptr) continue;
    for (const auto from : c10::irange(input.values.size())) {
      const Sharing sharing = input.values[from].sharing;
      // A copy is this micro-batch's own, but no longer changes with the alias of what was copied.
      // What has an alias keeps that mark: a copy of it would not change with the alias either.
      const bool shared = memoryOf(input.values[from].value) == memory ||
                          (sharing == Sharing::kAliased && memoryOf(given[from]) == memory);
      if (sharing != Sharing::kNone && shared && value.sharing != Sharing::kAliased)
        value.sharing = sharing;
    }
    for (const at::Tensor& tensor : tensors) {
      if (tensor.requires_grad() && memoryOf(tensor) == memory) value.sharing = Sharing::kAliased;
    }
  }
}

void refuseSharedWrites(const Activations& input, const std::vector<at::Tensor>& given,
                        const std::vector<std::uint32_t>& versions, std::size_t stage) {
  for (const auto k : c10::irange(given.size())) {
    if (input.values[k].sharing != Sharing::kAliased) continue;
    TORCH_CHECK(
        versionOf(given[k]) == versions[k], "stage ", stage, " changed ",
        k < input.payload_size ? "its input " : "the skip that it popped, value ", k,
        " in place, and its memory also belongs to another output, to a skip under way, or to a "
        "parameter of a stage before it. Their gradients would be wrong: clone it where it is "
        "made, or work out of place (inplace=False).");
  }
}

}  // namespace weft::pipe
