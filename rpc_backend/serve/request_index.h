// RequestIndex: finds a request of one peer that waits or runs here, when its caller gives it up.
//
// A request is added when it comes and not removed when it ends: its last user destroys it, and one
// of the next sweeps removes its entry. So a request needs no lock. Peers nearly always number
// their requests upwards, and then adding one takes constant time, otherwise logarithmic time.
//
// Threads: one at a time. Ownership: keeps no request alive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace weft::rpc {

// `Request`: a CallContext.
template <typename Request>
class RequestIndex {
 public:
  void add(std::uint64_t id, std::weak_ptr<Request> request) {
    if (entries_.size() >= sweep_at_) {
      std::erase_if(entries_, [](const auto& entry) { return entry.second.expired(); });
      // As many again may come before the next sweep, which then costs each of them two looks.
      sweep_at_ = std::max(kFewest, 2 * entries_.size());
    }
    // Threads of the caller may send in another order than they number.
    entries_.emplace_hint(entries_.end(), id, std::move(request));
  }

  // Cancels a request that its caller has given up. Null: it is over, or there never was one.
  std::shared_ptr<Request> cancel(std::uint64_t id) {
    const auto found = entries_.lower_bound(id);
    if (found == entries_.end() || found->first != id) return nullptr;
    auto request = found->second.lock();
    if (request != nullptr) request->cancel();
    return request;
  }

  // Cancels all requests of a lost caller. Returns those that are not over.
  std::vector<std::shared_ptr<Request>> cancelAll() {
    std::vector<std::shared_ptr<Request>> cancelled;
    for (const auto& [id, entry] : std::exchange(entries_, {})) {
      auto request = entry.lock();
      if (request == nullptr) continue;
      request->cancel();
      cancelled.push_back(std::move(request));
    }
    return cancelled;
  }

  // How many entries there are, including those of requests that are over.
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  static constexpr std::size_t kFewest = 64;

  std::multimap<std::uint64_t, std::weak_ptr<Request>> entries_;  // by id
  std::size_t sweep_at_ = kFewest;                                // entries
};

}  // namespace weft::rpc
