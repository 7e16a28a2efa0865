// FailedCreations: the values whose creation failed last, and why. Who asks for one may come after
// the failure, which then could not tell it.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc {

class FailedCreations {
 public:
  void add(const RRefKey& value, std::string why) {
    const std::lock_guard lock(mutex_);
    failed_.emplace_front(value, std::move(why));
    if (failed_.size() > kKept) failed_.pop_back();
  }

  std::optional<std::string> find(const RRefKey& value) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [failed, why] : failed_)
      if (failed == value) return why;
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kKept = 64;

  mutable std::mutex mutex_;
  std::deque<std::pair<RRefKey, std::string>> failed_;
};

}  // namespace weft::rpc
