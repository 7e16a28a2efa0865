// What of a pipeline outlives a mini-batch: its stages, its threads, and what was learnt about
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "pipe/data/device_copier.h"
#include "pipe/schedule/pace.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/timeline.h"
#include "pipe/stage/rng.h"
#include "pipe/stage/stage.h"
#include "pipe/stage/stage_context.h"

namespace weft::pipe {

// Which micro-batches keep no graph and are run again in the backward.
enum class Checkpoint : unsigned char { kNever, kExceptLast, kAlways };

// How tasks are run; kAuto finds out (pace.h).
enum class Threading : unsigned char { kAuto, kThreads, kInline };

// Whether a stage changes its input in place, which matters where that input is needed again.
//
//   kUnknown --its first such run, on a copy--> kReads | kWrites
enum class InputTrait : unsigned char { kUnknown, kReads, kWrites };

// A run without a graph cannot tell which of a stage's outputs will have one in the recomputation.
// Those that had none in the last run with a graph, from inputs of the same kind, are taken to have
// none; a recomputation that finds otherwise throws.
struct OutputHabit {
  std::uint32_t inputs = 0;     // bit k: input k, modulo 31, was differentiable; the highest: known
  std::uint32_t graphless = 0;  // bit k: output k had no graph
};

// What was learnt about a stage. Written by its worker's thread, read by any.
struct StageTraits {
  // Whether its last forward, in evaluation and in training, and its last backward used a random
  // number generator; true of one that has not run. It decides where the next one waits for its
  // turn to do so (rng.h), and nothing else.
  std::array<std::atomic<bool>, 2> forward_uses_rng{true, true};
  std::atomic<bool> backward_uses_rng{true};
  std::atomic<InputTrait> input{InputTrait::kUnknown};
  // Which of its outputs had no graph when it last ran with one: see OutputHabit.
  std::atomic<std::uint64_t> graphless{0};
};

// Shared by the pipeline and by the graphs it made.
struct PipelineContext {
  PipelineContext(std::vector<std::shared_ptr<Stage>> the_stages,
                  std::vector<c10::Device> the_devices, std::vector<SkipRoute> the_routes,
                  ThreadHooks hooks);

  // For copies between the stages' devices; none where there is no accelerator, or one alone. Made
  // by the first call: a pipeline may be built, and its process forked, before a device is used.
  const DeviceCopier* copier();

  const std::vector<std::shared_ptr<Stage>> stages;
  const std::vector<c10::Device> devices;
  const bool crosses;      // there are several
  const bool accelerated;  // one is not the CPU
  const std::vector<SkipRoute> routes;
  // Per stage, the skips that come to it from another, and that leave it.
  std::vector<std::vector<std::size_t>> incoming;
  std::vector<std::vector<std::size_t>> outgoing;
  // A worker per CPU stage and per accelerator.
  std::vector<std::size_t> worker_of;
  std::size_t workers = 0;

  std::vector<StageTraits> traits;
  // Per stage: held while it runs. Mini-batches of several callers may come to it at once.
  std::vector<std::recursive_mutex> in_use;
  Timeline timeline;
  std::array<Pace, 2> forward_pace;  // eval, train
  Pace backward_pace;
  std::atomic<Threading> threading{Threading::kAuto};
  std::unique_ptr<StageExecutor> executor;

 private:
  std::once_flag ferry_made_;
  std::unique_ptr<DeviceCopier> copier_;
};

}  // namespace weft::pipe
