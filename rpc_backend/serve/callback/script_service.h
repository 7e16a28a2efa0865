// ScriptService: the interface by which a layer above serves scripted calls: of what this process
// published, and of what its pipelines' stages send each other.
//
// torch sends a scripted call as a qualified name and values (ScriptCall, ScriptRemoteCall) and
// looks the name up among Python's scripted functions; in a process without Python it finds
// nothing. Weft's agents ask the services first and leave other names to torch. Built-in operators
// do not come here.
#pragma once

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/options/request_policy.h"
#include "rpc_backend/serve/callback/peer_request.h"
#include "rpc_backend/serve/callback/script_streams.h"
#include "rpc_backend/serve/callback/sender_scope.h"
#include "transport/base/api.h"

namespace weft::rpc {

// How the names of quick calls begin (quick_call.h).
inline constexpr const char* kQuick = "__weft__.quick.";

class ScriptService {
 public:
  using Future = c10::ivalue::Future;
  virtual ~ScriptService() = default;

  // Runs what is known under `name`, or returns null for a name that torch should look up. The
  // future's element type is the declared type of the result. Worker thread, for a quick call
  // (quick_call.h) also the loop thread; no GIL held. Throws std::exception, whose text the caller
  // gets.
  virtual c10::intrusive_ptr<Future> run(const std::string& name,
                                         std::vector<at::IValue>& stack) = 0;

 private:
  friend void addScriptService(ScriptService* service) noexcept;
  friend c10::intrusive_ptr<Future> runScript(const std::string& name,
                                              std::vector<at::IValue>& stack);
  ScriptService* next_ = nullptr;
};

// When the library is loaded: one thread. Not owned; it must live as long as the process.
WEFT_API void addScriptService(ScriptService* service) noexcept;
// As ScriptService::run(), by the first service that knows the name.
WEFT_API c10::intrusive_ptr<c10::ivalue::Future> runScript(const std::string& name,
                                                           std::vector<at::IValue>& stack);

// Throws c10::Error, which the caller gets, when `policy` refuses the built-in operator that `call`
// names, or the call has not the operator's arguments; also when this process calls itself.
WEFT_API void checkOperator(RequestPolicy policy, const torch::distributed::rpc::ScriptCall& call);

// torch's request callback (RequestCallbackImpl with Python, RequestCallbackNoPython without)
// behind the policy on built-in operators, the check of what peers ask (peer_request.h) and the
// service. Calls wrapped by distributed autograd and profiling come here too. Any worker thread.
template <typename Base>
class ServesScripts : public Base {
 public:
  explicit ServesScripts(RequestPolicy policy) : policy_(policy) {}

 protected:
  using Future = c10::ivalue::Future;
  using Streams = std::vector<c10::Stream>;
  using Command = torch::distributed::rpc::RpcCommandBase;

  // The first that torch does with a message that it has read, on the thread that serves it.
  std::unique_ptr<Command> deserializePythonRpcCommand(std::unique_ptr<Command> rpc,
                                                       const MessageType& type) const override {
    const SenderScope scope(PeerRequest::sender());
    return Base::deserializePythonRpcCommand(PeerRequest::checked(std::move(rpc), type), type);
  }

  c10::intrusive_ptr<Future> processScriptCall(Command& rpc,
                                               const Streams& streams) const override {
    namespace trpc = torch::distributed::rpc;
    auto& call = static_cast<trpc::ScriptCall&>(rpc);
    checkOperator(policy_, call);
    auto result = run(call, streams);
    if (!result) return Base::processScriptCall(rpc, streams);
    const auto answer = [](Future& future) {
      return withStorages(trpc::ScriptResp(future.value()).toMessage());
    };
    return result->then(answer, c10::getCustomClassType<c10::intrusive_ptr<trpc::Message>>());
  }

  c10::intrusive_ptr<Future> processScriptRemoteCall(Command& rpc,
                                                     const Streams& streams) const override {
    auto& call = static_cast<torch::distributed::rpc::ScriptRemoteCall&>(rpc);
    try {
      checkOperator(policy_, call);
    } catch (...) {
      // The RRef's value is the error, so that whoever asks for it does not wait.
      return this->assignOwnerRRef(call.retRRefId(), call.retForkId(),
                                   this->asFuture(std::current_exception()));
    }
    auto value = run(call, streams);
    if (!value) return Base::processScriptRemoteCall(rpc, streams);
    return this->assignOwnerRRef(call.retRRefId(), call.retForkId(), value);
  }

 private:
  // Null when torch should serve it.
  c10::intrusive_ptr<Future> run(torch::distributed::rpc::ScriptCall& call,
                                 const Streams& streams) const {
    if (!call.hasQualifiedName()) return nullptr;
    const auto& name = call.qualifiedName();
    const c10::MultiStreamGuard guard(streams);  // on which its tensors come
    if (const auto made = runScript(name.qualifiedName(), call.stackRef()))
      return onStreams(made, streams);
    // Where there are devices torch's own way loses the order of their streams.
    if constexpr (requires { &Base::runJitFunction; }) {
      if (streams.empty()) return nullptr;
      if (!call.isAsyncExecution())
        return onStreams(this->runJitFunction(name, call.stackRef(), streams, false), streams);
      const Streams defaults = defaultStreamsAfter(streams, call.stackRef());
      const c10::MultiStreamGuard on_defaults(defaults);
      const auto made = this->runJitFunction(name, call.stackRef(), defaults, false);
      return made->hasError() ? onStreams(made, streams) : innerOnStreams(made, streams);
    }
    return nullptr;
  }

  const RequestPolicy policy_;
};

}  // namespace weft::rpc
