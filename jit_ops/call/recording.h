// Whether distributed autograd records the calls of a thread.
//
// Threads: any; what is here is of the calling one.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

namespace weft::ops {

inline bool inAutogradContext() {
  using Container = torch::distributed::autograd::DistAutogradContainer;
  return torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet() &&
         Container::getInstance().hasValidContext();
}

// torch's functions have distributed autograd record a call also where gradients are off: the
// result would need them, and a backward pass of the worker wait for them. They record none where
// the thread is in no context.
class NotRecordedWithoutGradients {
  using Container = torch::distributed::autograd::DistAutogradContainer;

 public:
  NotRecordedWithoutGradients() : context_(Container::currentContextId()) {
    if (!at::GradMode::is_enabled() && inAutogradContext())
      Container::getInstance().clearCurrentContext();
  }
  ~NotRecordedWithoutGradients() { Container::forceCurrentContextId(context_); }
  NotRecordedWithoutGradients(const NotRecordedWithoutGradients&) = delete;
  NotRecordedWithoutGradients& operator=(const NotRecordedWithoutGradients&) = delete;

 private:
  const std::int64_t context_;
};

}  // namespace weft::ops
