// WaitingMessages: the sends and receives of a group for which threads of this process wait now.
//
// Threads: any. A message that nobody waits for costs nothing here.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace weft::process_group {

struct WaitingMessage {
  const char* title = nullptr;  // static text
  int rank = -1;                // the other one; -1: any
  std::chrono::steady_clock::time_point since;
  std::chrono::milliseconds timeout{};
};

class WaitingMessages {
 public:
  // Lists a message for as long as this exists.
  class Scope {
   public:
    Scope(std::shared_ptr<WaitingMessages> all, const WaitingMessage& one) : all_(std::move(all)) {
      const std::lock_guard lock(all_->mutex_);
      own_ = all_->messages_.insert(all_->messages_.end(), one);
    }
    ~Scope() {
      const std::lock_guard lock(all_->mutex_);
      all_->messages_.erase(own_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<WaitingMessages> all_;
    std::list<WaitingMessage>::iterator own_;
  };

  std::vector<WaitingMessage> list() const {
    const std::lock_guard lock(mutex_);
    return {messages_.begin(), messages_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::list<WaitingMessage> messages_;
};

}  // namespace weft::process_group
