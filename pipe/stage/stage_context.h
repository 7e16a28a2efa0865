// What a stage may ask while it runs: which micro-batch this is, whether it is being recomputed,
// and the skip connections. Thread-local; the engine sets it around every stage run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "transport/base/api.h"

namespace weft::pipe {

// Where a skip connection begins and ends. The same stage twice is a skip inside it.
struct SkipRoute {
  std::size_t from = 0;
  std::size_t to = 0;
};

// The skip tensors of one stage run, by the route's place in the pipeline's list. An undefined
// tensor is Python's None.
class SkipPort {
 public:
  explicit SkipPort(std::size_t routes) : slots_(routes) {}
  void put(std::size_t route, at::Tensor tensor) { slots_.at(route) = std::move(tensor); }
  // Nothing if it is not there. Taken once.
  std::optional<at::Tensor> take(std::size_t route) {
    return std::exchange(slots_.at(route), std::nullopt);
  }

 private:
  std::vector<std::optional<at::Tensor>> slots_;
};

struct StageContext {
  std::size_t stage = 0;
  std::size_t micro_batch = 0;
  std::size_t micro_batches = 0;
  bool checkpointing = false;  // keeps no graph: it will be run again
  bool recomputing = false;
  SkipPort* skips = nullptr;
  std::uint64_t mini_batch = 0;  // no two runs of any pipeline have the same
  bool in_backward = false;      // so the whole pipeline runs again: see isRunAgain()
};

// A new StageContext::mini_batch. Any thread.
WEFT_API std::uint64_t nextMiniBatchNumber();

// On the thread that calls a pipeline: whether that is part of a backward, or of a stage's
// recomputation in another pipeline.
WEFT_API bool isRunAgain();

// The run under way on this thread; nullptr outside of one.
WEFT_API const StageContext* currentStage();

class WEFT_API StageContextGuard {
 public:
  explicit StageContextGuard(const StageContext& context);
  ~StageContextGuard();
  StageContextGuard(const StageContextGuard&) = delete;
  StageContextGuard& operator=(const StageContextGuard&) = delete;

 private:
  const StageContext* before_;
};

}  // namespace weft::pipe
