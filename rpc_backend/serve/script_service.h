// ScriptService: the interface by which the layer above serves scripted calls of what this process
// published.
//
// torch sends a scripted call as a qualified name and values (ScriptCall, ScriptRemoteCall) and
// looks the name up among Python's scripted functions; in a process without Python it finds
// nothing. Weft's agents ask the service first and leave other names to torch. Built-in operators
// do not come here.
#pragma once

#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/core/request_policy.h"
#include "transport/base/api.h"

namespace weft::rpc {

class ScriptService {
 public:
  using Future = c10::ivalue::Future;
  virtual ~ScriptService() = default;

  // Runs what is known under `name`, or returns null for a name that torch should look up. The
  // future's element type is the declared type of the result. Worker thread, no GIL held; throws
  // std::exception, whose text the caller gets.
  virtual c10::intrusive_ptr<Future> run(const std::string& name,
                                         std::vector<at::IValue>& stack) = 0;
};

// The service of the process: set once, when the library is loaded; null before. Not owned.
WEFT_API void setScriptService(ScriptService* service) noexcept;
WEFT_API ScriptService* scriptService() noexcept;

// Throws c10::Error, which the caller gets, when `policy` refuses the built-in operator that `call`
// names, also when this process calls itself.
WEFT_API void checkOperator(RequestPolicy policy, const torch::distributed::rpc::ScriptCall& call);

// torch's request callback (RequestCallbackImpl with Python, RequestCallbackNoPython without)
// behind the policy on built-in operators and the service. Calls wrapped by distributed autograd
// and profiling come here too. Any worker thread.
template <typename Base>
class ServesScripts : public Base {
 public:
  explicit ServesScripts(RequestPolicy policy) : policy_(policy) {}

 protected:
  using Future = c10::ivalue::Future;
  using Streams = std::vector<c10::Stream>;

  c10::intrusive_ptr<Future> processScriptCall(torch::distributed::rpc::RpcCommandBase& rpc,
                                               const Streams& streams) const override {
    namespace trpc = torch::distributed::rpc;
    checkOperator(policy_, static_cast<trpc::ScriptCall&>(rpc));
    auto result = run(static_cast<trpc::ScriptCall&>(rpc));
    if (!result) return Base::processScriptCall(rpc, streams);
    const auto answer = [](Future& future) {
      return withStorages(trpc::ScriptResp(future.value()).toMessage());
    };
    return result->then(answer, c10::getCustomClassType<c10::intrusive_ptr<trpc::Message>>());
  }

  c10::intrusive_ptr<Future> processScriptRemoteCall(torch::distributed::rpc::RpcCommandBase& rpc,
                                                     const Streams& streams) const override {
    auto& call = static_cast<torch::distributed::rpc::ScriptRemoteCall&>(rpc);
    try {
      checkOperator(policy_, call);
    } catch (...) {
      // The RRef's value is the error, so that whoever asks for it does not wait.
      return this->assignOwnerRRef(call.retRRefId(), call.retForkId(),
                                   this->asFuture(std::current_exception()));
    }
    auto value = run(call);
    if (!value) return Base::processScriptRemoteCall(rpc, streams);
    return this->assignOwnerRRef(call.retRRefId(), call.retForkId(), value);
  }

 private:
  // Null when torch should serve it.
  static c10::intrusive_ptr<Future> run(torch::distributed::rpc::ScriptCall& call) {
    ScriptService* service = scriptService();
    if (service == nullptr || !call.hasQualifiedName()) return nullptr;
    return service->run(call.qualifiedName().qualifiedName(), call.stackRef());
  }

  const RequestPolicy policy_;
};

}  // namespace weft::rpc
