// CoalescingBatches: the operations that a thread submits between startCoalescing() and
// endCoalescing() of its group, which are asynchronous and have one Work together. Other backends
// that the thread's operations reach in between coalesce, too.
//
// Threads: any; each has its own batch, and other threads' operations take no part. A batch that an
// exception left open is dropped by the next one, which takes over its backends: they still
// coalesce, and the next end() ends that, too. Failure: end()
// throws where none is open, join() where another thread's batch has the backend. Where a backend
// cannot end its batch, end() throws that, or what an operation failed with, once all other
// backends have ended theirs and no operation of the batch runs any more.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
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
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  void start();
  // Whether the calling thread's is open.
  bool isOpen() const;
  // Adds to the calling thread's; false: that is not open.
  bool add(const WorkPtr& work);
  // Before an operation of that backend: it coalesces from now on, if the calling thread's is open.
  void join(const BackendPtr& backend);
  // The Work of all in it.
  WorkPtr end();

 private:
  struct Batch {
    std::vector<WorkPtr> works;
    std::vector<BackendPtr> backends;  // that coalesce
  };

  std::atomic<std::size_t> open_{0};  // read without the lock
  mutable std::mutex mutex_;
  std::unordered_map<std::thread::id, Batch> batches_;
};

}  // namespace weft::process_group
