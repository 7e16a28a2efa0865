#include "rpc_backend/agent/fault_plan.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/rpc/utils.h>

namespace weft::rpc {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;

namespace {

MessageType typeOf(const std::string& name) {
  static const std::unordered_map<std::string, MessageType> kTypes{
      {"RREF_FORK_REQUEST", MessageType::RREF_FORK_REQUEST},
      {"RREF_CHILD_ACCEPT", MessageType::RREF_CHILD_ACCEPT},
      {"RREF_USER_DELETE", MessageType::RREF_USER_DELETE},
      {"CLEANUP_AUTOGRAD_CONTEXT_REQ", MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ},
      {"PYTHON_REMOTE_CALL", MessageType::PYTHON_REMOTE_CALL},
      {"SCRIPT_REMOTE_CALL", MessageType::SCRIPT_REMOTE_CALL},
      {"PYTHON_CALL", MessageType::PYTHON_CALL},
      {"SCRIPT_CALL", MessageType::SCRIPT_CALL},
      {"PYTHON_RREF_FETCH_CALL", MessageType::PYTHON_RREF_FETCH_CALL},
      {"SCRIPT_RREF_FETCH_CALL", MessageType::SCRIPT_RREF_FETCH_CALL},
  };
  const auto found = kTypes.find(name);
  TORCH_CHECK(found != kTypes.end(), "No such message type: ", name);
  return found->second;
}

}  // namespace

FaultPlan::FaultPlan(const FaultOptions& options) : num_fail_sends_(options.num_fail_sends) {
  TORCH_CHECK(num_fail_sends_ >= 0, "num_fail_sends must not be negative, got ", num_fail_sends_);
  for (const std::string& name : options.messages_to_fail)
    fail_.insert(typeOf(name));
  for (const auto& [name, seconds] : options.messages_to_delay) {
    delay_[typeOf(name)] = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  }
  for (const auto& [name, copies] : options.messages_to_repeat)
    repeat_[typeOf(name)] = copies;
}

std::optional<std::string> FaultPlan::failure(const Message& message) {
  if (!fail_.contains(message.type())) return std::nullopt;
  const std::string key(message.payload().begin(), message.payload().end());
  int attempt = 0;
  {
    const std::lock_guard lock(mutex_);
    int& count = failed_[key];
    if (count >= num_fail_sends_) return std::nullopt;
    attempt = ++count;
  }
  return torch::distributed::rpc::makeRPCError(
      c10::str("Send attempt ", attempt, " failed intentionally"),
      torch::distributed::rpc::RPCErrorType::INTENTIONAL_FAILURE);
}

std::chrono::milliseconds FaultPlan::delay(MessageType type) const {
  const auto found = delay_.find(type);
  return found == delay_.end() ? std::chrono::milliseconds(0) : found->second;
}

int FaultPlan::repeats(MessageType type) const {
  const auto found = repeat_.find(type);
  return found == repeat_.end() ? 0 : found->second;
}

}  // namespace weft::rpc
