#include "c10d_plugin/engine/coalescing_batches.h"

#include <c10/util/Exception.h>

#include <utility>

#include "c10d_plugin/engine/coalesced_work.h"

namespace weft::process_group {

void CoalescingBatches::start() {
  std::vector<WorkPtr> dropped;  // released without the lock: a Work's end may take the GIL
  const std::lock_guard lock(mutex_);
  dropped = std::exchange(batches_[std::this_thread::get_id()], {});
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
  own->second.push_back(work);
  return true;
}

CoalescingBatches::WorkPtr CoalescingBatches::end() {
  std::vector<WorkPtr> works;
  {
    const std::lock_guard lock(mutex_);
    auto own = batches_.extract(std::this_thread::get_id());
    TORCH_CHECK(!own.empty(), "weft: endCoalescing() without startCoalescing() on this thread");
    works = std::move(own.mapped());
    open_.store(batches_.size(), std::memory_order_release);
  }
  // Unwrapped: another backend's Work knows its streams.
  if (works.size() == 1) return std::move(works.front());
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

}  // namespace weft::process_group
