#include "rpc_backend/python/faulty_agent.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <mutex>
#include <optional>
#include <unordered_set>

#include "rpc_backend/core/log.h"

namespace weft::rpc {

using torch::distributed::rpc::RPCErrorType;

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

std::function<milliseconds(MessageType)> delayOf(const FaultOptions& faults) {
  std::unordered_map<int, milliseconds> delays;
  for (const auto& [name, seconds] : faults.messages_to_delay)
    delays[typeOf(name)] = fromSeconds(seconds);
  return [delays](MessageType type) {
    const auto found = delays.find(type);
    return found == delays.end() ? milliseconds(0) : found->second;
  };
}

// The same payload fails num_fail_sends times and then passes, so that retries are seen to work.
class Failures {
 public:
  explicit Failures(const FaultOptions& faults) : sends_(faults.num_fail_sends) {
    TORCH_CHECK(sends_ >= 0, "num_fail_sends must not be negative, got ", sends_);
    for (const std::string& name : faults.messages_to_fail)
      types_.insert(typeOf(name));
  }

  // Why the message is not sent; nothing: it is.
  std::optional<std::string> next(const Message& message) {
    if (!types_.contains(message.type())) return std::nullopt;
    const std::string key(message.payload().begin(), message.payload().end());
    const std::lock_guard lock(mutex_);
    int& count = failed_[key];
    if (count >= sends_) return std::nullopt;
    return torch::distributed::rpc::makeRPCError(
        c10::str("Send attempt ", ++count, " failed intentionally"),
        RPCErrorType::INTENTIONAL_FAILURE);
  }

 private:
  const int sends_;
  std::unordered_set<int> types_;
  std::mutex mutex_;
  std::unordered_map<std::string, int> failed_;  // payload -> failures so far
};

void warnAboutCopy(const std::string& error) { logWarning("a repeated message: " + error); }

}  // namespace

std::shared_ptr<WeftAgent> FaultyAgent::create(Config config,
                                               std::unique_ptr<RequestCallback> callback,
                                               const FaultOptions& faults) {
  config.send_delay = delayOf(faults);
  config.send_fault = [failures = std::make_shared<Failures>(faults)](const Message& message) {
    return failures->next(message);
  };
  auto agent = own(new FaultyAgent(std::move(config), std::move(callback), faults));
  agent->joinGroup();
  return agent;
}

FaultyAgent::FaultyAgent(Config config, std::unique_ptr<RequestCallback> callback,
                         const FaultOptions& faults)
    : WeftAgent(std::move(config), std::move(callback)) {
  for (const auto& [name, copies] : faults.messages_to_repeat)
    repeat_[typeOf(name)] = copies;
}

FuturePtr FaultyAgent::send(const WorkerInfo& to, MessagePtr message, const float timeout_seconds,
                            const DeviceMap& device_map) {
  const bool live = rpcAgentRunning_.load() && !lossOf(to.id_);
  auto future = WeftAgent::send(to, message, timeout_seconds, device_map);
  const auto copies = repeat_.find(message->type());
  for (int i = !live || copies == repeat_.end() ? 0 : copies->second; i > 0; --i) {
    try {
      WeftAgent::send(to, message, timeout_seconds, device_map)->addCallback([](JitFuture& answer) {
        if (answer.hasError()) warnAboutCopy(answer.tryRetrieveErrorMessage());
      });
    } catch (const std::exception& error) {
      warnAboutCopy(error.what());
    }
  }
  return future;
}

}  // namespace weft::rpc
