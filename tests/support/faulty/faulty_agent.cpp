// FaultyAgent: a WeftAgent that fails, delays and repeats chosen messages, for PyTorch's
// fault-injection suites and the tests of RRefs (weft_faulty.py). Any thread.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using torch::distributed::rpc::RPCErrorType;

namespace {

// The keys are names of MessageType.
struct FaultOptions {
  std::vector<std::string> messages_to_fail;
  std::unordered_map<std::string, float> messages_to_delay;  // seconds
  int num_fail_sends = 0;                                    // failures before a send succeeds
  std::unordered_map<std::string, int> messages_to_repeat;   // copies sent besides
};

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

class FaultyAgent final : public WeftAgent {
 public:
  // As WeftAgent::create(). Throws c10::Error for a name that is no message type.
  static std::shared_ptr<WeftAgent> create(Config config, std::unique_ptr<RequestCallback> callback,
                                           const FaultOptions& faults) {
    config.send_delay = delayOf(faults);
    config.send_fault = [failures = std::make_shared<Failures>(faults)](const Message& message) {
      return failures->next(message);
    };
    auto agent = own(new FaultyAgent(std::move(config), std::move(callback), faults));
    agent->joinGroup();
    return agent;
  }

  FuturePtr send(const WorkerInfo& to, MessagePtr message, float timeout_seconds,
                 const DeviceMap& device_map) override {
    const bool live = rpcAgentRunning_.load() && !lossOf(to.id_);
    auto future = WeftAgent::send(to, message, timeout_seconds, device_map);
    const auto copies = repeat_.find(message->type());
    for (int i = !live || copies == repeat_.end() ? 0 : copies->second; i > 0; --i) {
      try {
        WeftAgent::send(to, message, timeout_seconds, device_map)
            ->addCallback([](JitFuture& answer) {
              if (answer.hasError()) warnAboutCopy(answer.tryRetrieveErrorMessage());
            });
      } catch (const std::exception& error) {
        warnAboutCopy(error.what());
      }
    }
    return future;
  }

 private:
  FaultyAgent(Config config, std::unique_ptr<RequestCallback> callback, const FaultOptions& faults)
      : WeftAgent(std::move(config), std::move(callback)) {
    for (const auto& [name, copies] : faults.messages_to_repeat)
      repeat_[typeOf(name)] = copies;
  }

  std::unordered_map<int, int> repeat_;
};

// What rpc_backend/python/bindings.cpp takes in place of WeftAgent::create.
using MakeAgent =
    std::function<std::shared_ptr<WeftAgent>(WeftAgent::Config, std::unique_ptr<RequestCallback>)>;

}  // namespace

PYBIND11_MODULE(_weft_faulty, module) {
  namespace py = pybind11;
  // So that torch's current agent is a WeftAgent for Python.
  py::class_<FaultyAgent, WeftAgent, std::shared_ptr<FaultyAgent>>(module, "FaultyAgent");
  module.def(
      "maker",
      [](std::vector<std::string> fail, std::unordered_map<std::string, float> delay,
         int fail_sends, std::unordered_map<std::string, int> repeat) {
        const FaultOptions faults{std::move(fail), std::move(delay), fail_sends, std::move(repeat)};
        auto* const make = new MakeAgent(
            [faults](WeftAgent::Config config, std::unique_ptr<RequestCallback> callback) {
              return FaultyAgent::create(std::move(config), std::move(callback), faults);
            });
        return py::capsule(make, "weft.MakeAgent", [](PyObject* self) {
          delete static_cast<MakeAgent*>(PyCapsule_GetPointer(self, "weft.MakeAgent"));
        });
      },
      py::arg("messages_to_fail"), py::arg("messages_to_delay"), py::arg("num_fail_sends"),
      py::arg("messages_to_repeat"));
}

}  // namespace weft::rpc
