// CoalescingBatches: the operations that a thread submits between startCoalescing() and
// endCoalescing() of its group, which are asynchronous and have one Work together.
//
// Threads: any; each has its own batch, and other threads' operations take no part. A batch that an
// exception left open is dropped by the next one. Failure: end() throws where none is open.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "transport/base/api.h"

namespace weft::process_group {

class WEFT_API CoalescingBatches {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  void start();
  // Whether the calling thread's is open.
  bool isOpen() const;
  // Adds to the calling thread's; false: that is not open.
  bool add(const WorkPtr& work);
  // The Work of all in it.
  WorkPtr end();

 private:
  std::atomic<std::size_t> open_{0};  // read without the lock
  mutable std::mutex mutex_;
  std::unordered_map<std::thread::id, std::vector<WorkPtr>> batches_;
};

}  // namespace weft::process_group
