// The part of a pipeline that outlives a mini-batch: its stages, its threads, and what was learnt
// about them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "pipe/cell/stage_traits.h"
#include "pipe/data/device_copier.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/thread_policy.h"
#include "pipe/schedule/timeline.h"
#include "pipe/stage/rng.h"
#include "pipe/stage/stage.h"
#include "pipe/stage/stage_context.h"

namespace weft::pipe {

// Which micro-batches keep no graph and are run again in the backward.
enum class Checkpoint : unsigned char { kNever, kExceptLast, kAlways };

// How tasks are run; kAuto: as ThreadPolicy decides. The others are for tests.
enum class Threading : unsigned char { kAuto, kThreads, kInline };

// Shared by the pipeline and by the graphs it made.
struct PipelineContext {
  PipelineContext(std::vector<std::shared_ptr<Stage>> the_stages,
                  std::vector<c10::Device> the_devices, std::vector<SkipRoute> the_routes,
                  ThreadHooks hooks);

  // Copies between the stages' devices. Made by the first call: a pipeline may be built, and its
  // process forked, before a device is used.
  const DeviceCopier& copier();

  const std::vector<std::shared_ptr<Stage>> stages;
  const std::vector<c10::Device> devices;
  const bool crosses;      // there are several devices
  const bool accelerated;  // one is not the CPU
  const bool compiled;     // a stage is compiled when it runs first
  const std::vector<SkipRoute> routes;
  // Per stage, the skips that come to it from another, and that leave it.
  std::vector<std::vector<std::size_t>> incoming;
  std::vector<std::vector<std::size_t>> outgoing;
  std::vector<std::vector<std::size_t>> consumers;  // per stage, the stages that its skips lead to
  // A worker per CPU stage and per accelerator.
  std::vector<std::size_t> worker_of;
  std::size_t workers = 0;

  std::vector<StageTraits> traits;
  // Per stage: held while the stage runs. Mini-batches of several callers may reach a stage at
  // once.
  std::vector<std::recursive_mutex> in_use;
  Timeline timeline;
  std::array<ThreadPolicy, 2> forward_policy;  // evaluation, training
  ThreadPolicy backward_policy;
  std::atomic<Threading> threading{Threading::kAuto};
  std::unique_ptr<StageExecutor> executor;

 private:
  std::once_flag copier_made_;
  std::unique_ptr<DeviceCopier> copier_;
};

}  // namespace weft::pipe
