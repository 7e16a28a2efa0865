// Records what ran when: one entry per stage run or copy, kept while a recording is on. No torch.
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace weft::pipe {

enum class EventKind : std::uint8_t { kForward, kRecompute, kBackward, kCopy };

struct Event {
  std::size_t stage;
  std::size_t micro_batch;
  EventKind kind;
  std::int64_t begin_ns;  // CLOCK_MONOTONIC
  std::int64_t end_ns;
  std::size_t thread;  // 0 is the caller's, j + 1 is worker j's
};

inline std::int64_t monotonicNanos() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Any thread may call it. Costs one atomic read while nothing is recorded.
class Timeline {
 public:
  void start() {
    const std::lock_guard lock(mutex_);
    events_.clear();
    on_.store(true, std::memory_order_relaxed);
  }
  std::vector<Event> stop() {
    const std::lock_guard lock(mutex_);
    on_.store(false, std::memory_order_relaxed);
    return std::exchange(events_, {});
  }
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    if (on()) events_.push_back(event);
  }

  // Records from its construction to its end.
  class Span {
   public:
    Span(Timeline& timeline, std::size_t stage, std::size_t micro_batch, EventKind kind,
         std::size_t thread)
        : timeline_(timeline.on() ? &timeline : nullptr) {
      if (timeline_ == nullptr) return;
      event_ = {stage, micro_batch, kind, monotonicNanos(), 0, thread};
    }
    ~Span() {
      if (timeline_ == nullptr) return;
      event_.end_ns = monotonicNanos();
      timeline_->add(event_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Timeline* timeline_;
    Event event_{};
  };

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace weft::pipe
