#include "pipe/workers/arrivals.h"

#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "rpc_backend/agent/weft_agent.h"

namespace weft::pipe {

void Arrivals::put(const ArrivalKey& key, Parcel parcel) {
  {
    const std::lock_guard lock(mutex_);
    if (key.mini_batch <= ended_) return;
    parcels_.insert_or_assign(key, std::move(parcel));
  }
  wakeTakers();
}

void Arrivals::wakeTakers() {
  changed_.notify_all();
  if (reading_thread_ == std::thread::id() || reading_thread_ == std::this_thread::get_id()) return;
  if (const auto agent = rpc::WeftAgent::current()) agent->wakeDriver();
}

// The thread that waits reads from the network itself what it waits for, where it can.
std::optional<transport::Waited> Arrivals::awaitReading(transport::Deadline deadline,
                                                        const std::function<bool()>& ready) {
  const auto agent = rpc::WeftAgent::current();
  auto none = std::thread::id();
  if (agent == nullptr ||
      !reading_thread_.compare_exchange_strong(none, std::this_thread::get_id()))
    return std::nullopt;
  const auto waited = agent->drive(deadline, ready);
  reading_thread_ = std::thread::id();
  return waited;
}

std::optional<Parcel> Arrivals::take(const ArrivalKey& key, std::chrono::milliseconds patience) {
  const auto deadline = transport::deadlineAfter(patience);
  const auto ready = [&] { return key.mini_batch <= ended_ || parcels_.contains(key); };
  auto waited = awaitReading(deadline, [&] {
    const std::lock_guard lock(mutex_);
    return ready();
  });
  std::unique_lock lock(mutex_);
  if (!waited) waited = transport::waitInterruptibly(changed_, lock, deadline, ready);
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
  wakeTakers();
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

void closeArrivals(const std::string& pipeline, const std::shared_ptr<Arrivals>& own) {
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().pipelines.find(pipeline);
    if (found != registry().pipelines.end() && found->second == own)
      registry().pipelines.erase(found);
  }
  own->end(std::numeric_limits<std::int64_t>::max(), "the Pipe was closed");
}

std::shared_ptr<Arrivals> findArrivals(const std::string& pipeline) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().pipelines.find(pipeline);
  return found == registry().pipelines.end() ? nullptr : found->second;
}

std::string noStageAt(const std::string& worker) {
  return "worker '" + worker +
         "' has no stage of this Pipe: it was restarted, its driver was out of reach, or the Pipe "
         "was closed. load_checkpoint builds its stages again; without one, make the Pipe again.";
}

}  // namespace weft::pipe
