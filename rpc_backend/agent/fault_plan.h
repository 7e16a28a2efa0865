// Faults on purpose, for PyTorch's fault-injection suites (weft.testing). Any thread.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "rpc_backend/core/options.h"

namespace weft::rpc {

class FaultPlan {
 public:
  // Throws c10::Error for a name that is no message type.
  explicit FaultPlan(const FaultOptions& options);

  // The error of a send that is to fail now. The same message (by payload) fails
  // num_fail_sends times and then passes, so that retries are seen to work.
  std::optional<std::string> failure(const torch::distributed::rpc::Message& message);
  // How long the message is to be held back; 0 for most.
  std::chrono::milliseconds delay(torch::distributed::rpc::MessageType type) const;
  // How many more times it is to be sent; 0 for most.
  int repeats(torch::distributed::rpc::MessageType type) const;

 private:
  const int num_fail_sends_;
  std::unordered_set<int> fail_;
  std::unordered_map<int, std::chrono::milliseconds> delay_;
  std::unordered_map<int, int> repeat_;
  std::mutex mutex_;
  std::unordered_map<std::string, int> failed_;  // payload -> failures so far
};

}  // namespace weft::rpc
