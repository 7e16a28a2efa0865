// What of a pipeline outlives a mini-batch: its stages, its threads, and what was learnt about
// them.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "pipe/crew.h"
#include "pipe/ferry.h"
#include "pipe/pace.h"
#include "pipe/rng.h"
#include "pipe/stage.h"
#include "pipe/stage_context.h"
#include "pipe/timeline.h"

namespace weft::pipe {

// Which micro-batches keep no graph and are run again in the backward.
enum class Checkpoint : unsigned char { kNever, kExceptLast, kAlways };

// How tasks are run; kAuto finds out (pace.h).
enum class Threading : unsigned char { kAuto, kThreads, kInline };

// Whether a stage changes its input in place, which matters where that input is needed again.
//
//   kUnknown --its first such run, on a copy--> kReads | kWrites
enum class InputHabit : unsigned char { kUnknown, kReads, kWrites };

// What was learnt about a stage. Written by its lane's thread, read by any.
struct StageHabits {
  std::array<std::atomic<RngHabit>, 2> draws{RngHabit::kUnknown,
                                             RngHabit::kUnknown};  // eval, train
  std::atomic<InputHabit> input{InputHabit::kUnknown};
  std::atomic<bool> leaves_known{false};  // its graph was searched for tensors nobody knows of
};

// Shared by the pipeline and by the graphs it made.
struct Machine {
  Machine(std::vector<std::shared_ptr<Stage>> the_stages, std::vector<c10::Device> the_devices,
          std::vector<SkipRoute> the_routes, ThreadHooks hooks);

  // For copies between the stages' devices; none where there is no accelerator, or one alone. Made
  // by the first call: a pipeline may be built, and its process forked, before a device is used.
  const Ferry* ferry();

  const std::vector<std::shared_ptr<Stage>> stages;
  const std::vector<c10::Device> devices;
  const bool crosses;      // there are several
  const bool accelerated;  // one is not the CPU
  const std::vector<SkipRoute> routes;
  // Per stage, the skips that come to it from another, and that leave it.
  std::vector<std::vector<std::size_t>> incoming;
  std::vector<std::vector<std::size_t>> outgoing;
  // A lane per CPU stage and per accelerator.
  std::vector<std::size_t> lane_of;
  std::size_t lanes = 0;

  std::vector<StageHabits> habits;
  Timeline timeline;
  std::array<Pace, 2> forward_pace;  // eval, train
  Pace backward_pace;
  std::atomic<Threading> threading{Threading::kAuto};
  std::unique_ptr<Crew> crew;

 private:
  std::once_flag ferry_made_;
  std::unique_ptr<Ferry> ferry_;
};

}  // namespace weft::pipe
