// WaitTimes: how long a rank has waited for each of the others in collectives: the straggler has
// the most. Only waits that were long enough to sleep are counted.
//
// Threads: any.
#pragma once

#include <chrono>
#include <mutex>
#include <vector>

namespace weft::collectives {

class WaitTimes {
 public:
  // `rank` was the last to come.
  void add(int rank, std::chrono::nanoseconds waited) {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(rank);
    if (seconds_.size() <= index) seconds_.resize(index + 1);
    seconds_[index] += std::chrono::duration<double>(waited).count();
  }
  // By rank; ranks beyond the end were not waited for.
  std::vector<double> seconds() const {
    const std::lock_guard lock(mutex_);
    return seconds_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<double> seconds_;
};

}  // namespace weft::collectives
