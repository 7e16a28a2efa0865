// FaultyAgent: a WeftAgent that fails, delays and repeats chosen messages, for PyTorch's
// fault-injection suites (weft.testing). Any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/agent/weft_agent.h"

namespace weft::rpc {

// The keys are names of MessageType.
struct FaultOptions {
  std::vector<std::string> messages_to_fail;
  std::unordered_map<std::string, float> messages_to_delay;  // seconds
  int num_fail_sends = 0;                                    // failures before a send succeeds
  std::unordered_map<std::string, int> messages_to_repeat;   // copies sent besides
};

class FaultyAgent : public WeftAgent {
 public:
  // As WeftAgent::create(). Throws c10::Error for a name that is no message type.
  static std::shared_ptr<WeftAgent> create(Config config, std::unique_ptr<RequestCallback> callback,
                                           const FaultOptions& faults);

  FuturePtr send(const WorkerInfo& to, MessagePtr message, float timeout_seconds,
                 const DeviceMap& device_map) override;

 private:
  FaultyAgent(Config config, std::unique_ptr<RequestCallback> callback, const FaultOptions& faults);

  std::unordered_map<int, int> repeat_;
};

}  // namespace weft::rpc
