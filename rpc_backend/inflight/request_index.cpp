#include "rpc_backend/inflight/request_index.h"

#include <algorithm>

namespace weft::rpc {

namespace {
constexpr std::size_t kFewest = 64;
}  // namespace

void RequestIndex::add(std::uint64_t id, std::weak_ptr<CallContext> call) {
  if (entries_.size() >= sweep_at_) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.expired(); });
    // As many again may come before the next sweep, which then costs each of them two looks.
    sweep_at_ = std::max(kFewest, 2 * entries_.size());
  }
  // Threads of the caller may send in another order than they number.
  entries_.emplace_hint(entries_.end(), id, std::move(call));
}

std::shared_ptr<CallContext> RequestIndex::cancel(std::uint64_t id) {
  const auto found = entries_.lower_bound(id);
  if (found == entries_.end() || found->first != id) return nullptr;
  auto call = found->second.lock();
  if (call != nullptr) call->cancel();
  return call;
}

std::vector<std::shared_ptr<CallContext>> RequestIndex::cancelAll() {
  std::vector<std::shared_ptr<CallContext>> cancelled;
  for (const auto& [id, entry] : entries_) {
    if (auto call = entry.lock()) {
      call->cancel();
      cancelled.push_back(std::move(call));
    }
  }
  entries_.clear();
  return cancelled;
}

}  // namespace weft::rpc
