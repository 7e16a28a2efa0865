// StageTraits: what was learnt about a stage from its runs, to prepare the next run.
//
// Threads: the thread that runs the stage writes, any thread reads. A wrong guess costs time or
// raises an error that says so; it never changes a result.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pipe/cell/activation.h"

namespace weft::pipe {

// Whether a stage changes its input in place, which matters where that input is needed again.
//
//   kUnknown --its first such run, on a copy--> kReads | kWrites
enum class InputTrait : unsigned char { kUnknown, kReads, kWrites };

class StageTraits {
 public:
  // Whether the last forward, in training or in evaluation, and the last backward used a random
  // number generator; true of one that has not run. Such a run waits for its turn before it begins
  // (pipe/stage/rng.h).
  bool forwardUsesRng(bool training) const { return forward_uses_rng_[training ? 1 : 0].load(); }
  bool backwardUsesRng() const { return backward_uses_rng_.load(); }
  void learnForwardRng(bool training, bool used) { learn(forward_uses_rng_[training], used); }
  void learnBackwardRng(bool used) { learn(backward_uses_rng_, used); }

  InputTrait input() const { return input_.load(std::memory_order_relaxed); }
  // After a run whose input is needed again. Throws if no copy of a changed input was kept.
  void learnInput(bool written, std::size_t stage);

  // After a run without a graph, which cannot tell which outputs will have one in the
  // recomputation. Outputs that had none in the last run with a graph, from inputs of the same
  // kind, are assumed to have none: this makes them not differentiable, and returns a mask of them.
  std::uint32_t assumeGraphs(const Activations& input, Activations& output) const;
  // After a run with a graph. Throws if an output of the mask `assumed` has a graph after all.
  void learnGraphs(const Activations& input, const Activations& output, std::uint32_t assumed,
                   std::size_t stage);

 private:
  // Read before it is written: an unchanged trait stays in all caches.
  template <typename T>
  static void learn(std::atomic<T>& trait, T now) {
    if (trait.load(std::memory_order_relaxed) != now) trait.store(now, std::memory_order_relaxed);
  }

  std::array<std::atomic<bool>, 2> forward_uses_rng_{true, true};  // evaluation, training
  std::atomic<bool> backward_uses_rng_{true};
  std::atomic<InputTrait> input_{InputTrait::kUnknown};
  // Low half, bit k: output k had no graph. High half: the inputs were of this kind; see kindsOf.
  std::atomic<std::uint64_t> graphless_{0};
};

// Whether gradients can be taken of values of its type.
bool mayHaveGradient(const at::Tensor& tensor);

}  // namespace weft::pipe
