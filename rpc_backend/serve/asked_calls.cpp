#include "rpc_backend/serve/asked_calls.h"

#include <algorithm>

namespace weft::rpc {

namespace {
constexpr std::size_t kFewest = 64;
}  // namespace

void AskedCalls::add(std::uint64_t id, std::weak_ptr<CallContext> call) {
  if (entries_.size() >= sweep_at_) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.call.expired(); });
    // As many again may come before the next sweep, which then costs each of them two looks.
    sweep_at_ = std::max(kFewest, 2 * entries_.size());
  }
  auto at = entries_.end();
  // Threads of the caller may send in another order than they number.
  if (!entries_.empty() && entries_.back().id > id) {
    at = std::upper_bound(entries_.begin(), entries_.end(), id,
                          [](std::uint64_t number, const Entry& e) { return number < e.id; });
  }
  entries_.insert(at, {id, std::move(call)});
}

std::shared_ptr<CallContext> AskedCalls::cancel(std::uint64_t id) {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), id,
                       [](const Entry& e, std::uint64_t number) { return e.id < number; });
  if (found == entries_.end() || found->id != id) return nullptr;
  auto call = found->call.lock();
  if (call != nullptr) call->cancel();
  return call;
}

std::vector<std::shared_ptr<CallContext>> AskedCalls::cancelAll() {
  std::vector<std::shared_ptr<CallContext>> cancelled;
  for (const Entry& entry : entries_) {
    if (auto call = entry.call.lock()) {
      call->cancel();
      cancelled.push_back(std::move(call));
    }
  }
  entries_.clear();
  return cancelled;
}

}  // namespace weft::rpc
