// MonitoredBarrier: a barrier that says who did not come. Rank 0 waits for every rank and releases
// them.
//
// Threads: any, which wait. Failure: throws c10::Error with the texts of torch's monitored_barrier,
// because programs search for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "c10d_plugin/core/mailbox.h"

namespace weft::process_group {

class MonitoredBarrier {
 public:
  // `mailbox` outlives it.
  explicit MonitoredBarrier(collectives::Mailbox& mailbox) : mailbox_(mailbox) {}

  // `wait_all_ranks`: the error names all that are missing, not the first.
  void meet(std::chrono::milliseconds timeout, bool wait_all_ranks);

 private:
  void gatherArrivals(std::uint64_t count, std::chrono::milliseconds timeout, bool wait_all_ranks);
  void reportArrival(std::uint64_t count, std::chrono::milliseconds timeout);

  collectives::Mailbox& mailbox_;
  std::atomic<std::uint64_t> barriers_{0};  // so far
};

}  // namespace weft::process_group
