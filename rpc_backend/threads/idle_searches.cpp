#include "rpc_backend/threads/idle_searches.h"

#include <algorithm>
#include <utility>

namespace weft::rpc {

void IdleSearches::add(IdleWork work) {
  if (places_.back().work.until) places_.emplace_back();
  places_.back().work = std::move(work);
}

IdleSearches::Place* IdleSearches::free() {
  const auto free =
      std::find_if(places_.begin(), places_.end(), [](const Place& place) { return !place.taken; });
  return free == places_.end() ? nullptr : &*free;
}

bool IdleSearches::look(std::unique_lock<std::mutex>& lock, Place& place, bool may_work,
                        const std::function<bool()>& came, std::function<void()>& task,
                        transport::AdaptiveSpin& spin) {
  const bool drives = place.work.until != nullptr && may_work;
  const auto found = [&] {
    if (came() || place.task) return true;
    if (!drives || place.sleeps) return false;
    // In this order, because a thread that brings a task makes came() true before it looks whom to
    // wake.
    place.sleeps = true;
    return came();
  };
  place.taken = true;
  place.sleeps = drives;
  place.searcher = std::this_thread::get_id();
  lock.unlock();
  const bool drove = drives && place.work.until(found, spin);
  if (!drove) spin.until(found);
  lock.lock();
  place.taken = place.sleeps = false;
  task = std::exchange(place.task, nullptr);
  return drove;
}

std::size_t IdleSearches::awake() const {
  return static_cast<std::size_t>(std::count_if(
      places_.begin(), places_.end(),
      [](const Place& place) { return place.taken && (place.isHere() || !place.sleeps); }));
}

IdleSearches::Place* IdleSearches::callSleeping() {
  for (Place& place : places_)
    if (place.taken && !place.isHere() && place.sleeps.exchange(false)) return &place;
  return nullptr;
}

void IdleSearches::wakeSleeping() const {
  for (const Place& place : places_)
    if (place.sleeps) place.work.wake();
}

IdleSearches::Place* IdleSearches::ofThisThread() {
  for (Place& place : places_)
    if (place.isHere() && !place.task) return &place;
  return nullptr;
}

}  // namespace weft::rpc
