// GroupState: whether a group can still be used, and if not, why. The first thread that finds a
// failure records it here, and all operations that wait or come later fail with that reason.
//
// Threads: any.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <string>

namespace weft::process_group {

class GroupState {
 public:
  // The first reason stays.
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    why_ = why;
    failed_.store(true);
  }
  bool failed() const { return failed_.load(); }
  // Throws what ended the group, if anything did.
  void check(const char* title) const {
    if (!failed()) return;
    const std::lock_guard lock(mutex_);
    C10_THROW_ERROR(DistBackendError, std::string(title) + ": " + why_);
  }

  // From now on ranks may leave.
  void close() { closing_.store(true); }
  bool closing() const { return closing_.load(); }

 private:
  std::atomic<bool> failed_{false};
  std::atomic<bool> closing_{false};
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace weft::process_group
