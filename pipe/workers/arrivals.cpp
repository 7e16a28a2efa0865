#include "pipe/workers/arrivals.h"

#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "transport/base/interruption.h"

namespace weft::pipe {

void Arrivals::put(const ArrivalKey& key, Parcel parcel) {
  {
    const std::lock_guard lock(mutex_);
    if (key.mini_batch <= ended_) return;
    parcels_.insert_or_assign(key, std::move(parcel));
  }
  changed_.notify_all();
}

std::optional<Parcel> Arrivals::take(const ArrivalKey& key, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return key.mini_batch <= ended_ || parcels_.contains(key); };
  const auto waited =
      transport::waitInterruptibly(changed_, lock, transport::deadlineAfter(patience), ready);
  if (waited == transport::Waited::kInterrupted) {
    lock.unlock();
    transport::raiseInterrupt();
    return std::nullopt;
  }
  if (key.mini_batch <= ended_) throw std::runtime_error(reason_);
  auto found = parcels_.extract(key);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

void Arrivals::end(std::int64_t mini_batch, const std::string& reason) {
  std::map<ArrivalKey, Parcel> dropped;  // without the lock
  {
    const std::lock_guard lock(mutex_);
    if (mini_batch <= ended_) return;
    ended_ = mini_batch;
    reason_ = reason;
    while (!parcels_.empty() && parcels_.begin()->first.mini_batch <= mini_batch)
      dropped.insert(parcels_.extract(parcels_.begin()));
  }
  changed_.notify_all();
}

bool Arrivals::isOver(std::int64_t mini_batch) const {
  const std::lock_guard lock(mutex_);
  return mini_batch <= ended_;
}

std::size_t Arrivals::size() const {
  const std::lock_guard lock(mutex_);
  return parcels_.size();
}

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Arrivals>> pipelines;
};

// Never destroyed: calls may come while the process exits.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

std::shared_ptr<Arrivals> openArrivals(const std::string& pipeline) {
  auto made = std::make_shared<Arrivals>();
  const std::lock_guard lock(registry().mutex);
  return registry().pipelines.insert_or_assign(pipeline, std::move(made)).first->second;
}

void closeArrivals(const std::string& pipeline) {
  std::shared_ptr<Arrivals> closed;
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().pipelines.extract(pipeline);
    if (found.empty()) return;
    closed = found.mapped();
  }
  closed->end(std::numeric_limits<std::int64_t>::max(), "the Pipe was closed");
}

std::shared_ptr<Arrivals> findArrivals(const std::string& pipeline) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().pipelines.find(pipeline);
  return found == registry().pipelines.end() ? nullptr : found->second;
}

}  // namespace weft::pipe
