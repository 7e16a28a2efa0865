// Decides whether a pipeline's tasks run on the workers' threads or in line on the caller's.
//
// Threads are the default. Handing a task to another thread costs about kHandOver, so a stage that
// is shorter gains nothing by running beside another. Tasks run in line while fewer than two
// stages were longer than that in the last mini-batch. Results do not depend on it.
//
// Stages that torch.compile compiles run in line for shapes of which no mini-batch has been
// measured: these runs compile, which torch does under one lock and one flag of the whole process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "pipe/schedule/schedule.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/timeline.h"

namespace weft::pipe {

// Waking a sleeping thread, and a core that leaves its idle state: nanoseconds.
inline constexpr std::int64_t kHandOver = 50'000;

// How long stages run in one mini-batch, per kind of task. The shortest run counts: whatever
// disturbs one (the interpreter's lock, other programs) only adds to it. A stage's runs are
// measured one at a time, each on any thread; the rest is for when none runs.
class StageTimes {
 public:
  using Clock = std::int64_t (*)();  // nanoseconds
  explicit StageTimes(std::size_t stages, Clock clock = &monotonicNanos)
      : clock_(clock), shortest_(stages * kTaskKinds, kNotRun) {}

  // Measures one run, from its construction to its end.
  class Span {
   public:
    Span(StageTimes& times, std::size_t stage, TaskKind kind)
        : clock_(times.clock_),
          shortest_(times.shortest_[stage * kTaskKinds + static_cast<std::size_t>(kind)]),
          begin_(clock_()) {}
    ~Span() { shortest_ = std::min(shortest_, clock_() - begin_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    const Clock clock_;
    std::int64_t& shortest_;
    const std::int64_t begin_;
  };

  // How many stages take at least as long as a hand-over, in some kind of task.
  std::size_t longStages() const {
    std::size_t count = 0;
    for (auto stage = shortest_.begin(); stage != shortest_.end(); stage += kTaskKinds) {
      count += std::any_of(stage, stage + kTaskKinds, [](std::int64_t shortest) {
        return shortest != kNotRun && shortest >= kHandOver;
      });
    }
    return count;
  }

 private:
  static constexpr std::int64_t kNotRun = std::numeric_limits<std::int64_t>::max();
  Clock clock_;
  std::vector<std::int64_t> shortest_;  // per stage and kind
};

// Any thread may call it.
class ThreadPolicy {
 public:
  // `compile_key`: a digest of all in a mini-batch that makes torch.compile compile its stages
  // again, such as shapes, which parameters want gradients, and autocast; nothing where no stage is
  // compiled.
  Running choose(std::optional<std::size_t> compile_key) const {
    const std::lock_guard lock(mutex_);
    return pays_ && (!compile_key || compiled_.contains(*compile_key)) ? Running::kThreads
                                                                       : Running::kInline;
  }
  // After a mini-batch.
  void learn(const StageTimes& times, std::optional<std::size_t> compile_key) {
    const std::lock_guard lock(mutex_);
    pays_ = times.longStages() >= 2;
    if (compile_key) compiled_.insert(*compile_key);
  }

 private:
  mutable std::mutex mutex_;
  bool pays_ = true;  // to take threads
  std::unordered_set<std::size_t> compiled_;
};

}  // namespace weft::pipe
