#include "rpc_backend/rref/failed_creations.h"

#include <algorithm>

namespace weft::rpc {

void FailedCreations::add(const RRefKey& value, std::string why) {
  const std::lock_guard lock(mutex_);
  failed_.emplace_front(value, std::move(why));
  if (failed_.size() > kKept) failed_.pop_back();
}

std::optional<std::string> FailedCreations::find(const RRefKey& value) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(failed_.begin(), failed_.end(),
                                  [&](const auto& failed) { return failed.first == value; });
  if (found == failed_.end()) return std::nullopt;
  return found->second;
}

}  // namespace weft::rpc
