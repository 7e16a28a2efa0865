#include "c10d_plugin/engine/coalescing_batches.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "c10d_plugin/engine/coalesced_work.h"

namespace weft::process_group {

void CoalescingBatches::start() {
  std::vector<WorkPtr> dropped;  // released without the lock: a Work's end may take the GIL
  const std::lock_guard lock(mutex_);
  dropped = std::exchange(batches_[std::this_thread::get_id()].works, {});
  open_.store(batches_.size(), std::memory_order_release);
}

bool CoalescingBatches::isOpen() const {
  if (open_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return batches_.contains(std::this_thread::get_id());
}

bool CoalescingBatches::add(const WorkPtr& work) {
  if (open_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto own = batches_.find(std::this_thread::get_id());
  if (own == batches_.end()) return false;
  own->second.works.push_back(work);
  return true;
}

void CoalescingBatches::join(const BackendPtr& backend) {
  if (open_.load(std::memory_order_acquire) == 0) return;
  {
    const std::lock_guard lock(mutex_);
    const auto own = batches_.find(std::this_thread::get_id());
    if (own == batches_.end() || std::ranges::count(own->second.backends, backend) != 0) return;
    for (const auto& [thread, batch] : batches_) {
      TORCH_CHECK(std::ranges::count(batch.backends, backend) == 0,
                  "weft: two threads coalesce "
                  "operations of the same group on the same kind of device at a time; give each "
                  "thread a group of its own");
    }
    own->second.backends.push_back(backend);
  }
  backend->startCoalescing();
}

CoalescingBatches::WorkPtr CoalescingBatches::end() {
  Batch batch;
  {
    const std::lock_guard lock(mutex_);
    auto own = batches_.extract(std::this_thread::get_id());
    TORCH_CHECK(!own.empty(), "weft: endCoalescing() without startCoalescing() on this thread");
    batch = std::move(own.mapped());
    open_.store(batches_.size(), std::memory_order_release);
  }
  auto& works = batch.works;
  std::exception_ptr failure;
  for (const BackendPtr& backend : batch.backends) {
    try {
      if (auto work = backend->endCoalescing()) works.push_back(std::move(work));
    } catch (const abi::__forced_unwind&) {
      throw;  // pthread_exit(): the thread ends
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) {
    c10::make_intrusive<CoalescedWork>(std::move(works))->wait(kNoTimeout);
    std::rethrow_exception(failure);
  }
  // Unwrapped: another backend's Work knows its streams.
  if (works.size() == 1) return std::move(works.front());
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

}  // namespace weft::process_group
