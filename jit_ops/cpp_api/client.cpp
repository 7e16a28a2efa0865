// The free functions of weft.h: calls, references, gradients.
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>

#include "jit_ops/serve/plain_errors.h"
#include "jit_ops/weft.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/log.h"

namespace weft {

namespace {

namespace autograd = torch::distributed::autograd;

bool isOperator(const std::string& what) { return what.find("::") != std::string::npos; }

}  // namespace

Future rpcAsync(const std::string& worker, const std::string& what, Values args,
                const CallOptions& options) {
  ops::Call call{worker, what, std::move(args), options};
  return isOperator(what) ? ops::callOperator(std::move(call)) : ops::callAsync(std::move(call));
}

at::IValue rpcSync(const std::string& worker, const std::string& what, Values args,
                   const CallOptions& options, const c10::TypePtr& type) {
  ops::Call call{worker, what, std::move(args), options};
  if (!isOperator(what)) return ops::call(std::move(call), type);
  const rpc::ScopedInlineWaiter waiter;
  const Future answer = ops::callOperator(std::move(call), type);
  rpc::InlineWaiter::wait();
  return wait(answer);
}

std::optional<double> deadline() noexcept { return rpc::secondsLeft(); }

bool cancelled() noexcept { return rpc::isCancelled(); }

RRef RRef::from(const at::IValue& value) try {
  TORCH_CHECK(value.isRRef(), "expected an RRef, got ", value.type()->annotation_str());
  return RRef(c10::dynamic_intrusive_pointer_cast<torch::distributed::rpc::RRef>(value.toRRef()));
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

at::IValue RRef::toValue() const {
  return c10::static_intrusive_pointer_cast<c10::RRefInterface>(rref_);
}

RRef remote(const std::string& worker, const std::string& name, Values args,
            const CallOptions& options, const c10::TypePtr& type) {
  return RRef(ops::callRemote({worker, name, std::move(args), options}, type));
}

AutogradContext::AutogradContext() try
    : id_(autograd::DistAutogradContainer::getInstance().newContext()->contextId()) {
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

AutogradContext::~AutogradContext() {
  try {
    autograd::DistAutogradContainer::getInstance().releaseContext(id_);
  } catch (const std::exception& error) {
    rpc::logWarning(std::string("an autograd context could not be released at all workers: ") +
                    error.what());
  }
}

void AutogradContext::backward(const std::vector<at::Tensor>& roots, bool retain_graph) try {
  autograd::DistEngine::getInstance().execute(id_, roots, retain_graph);
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

at::Tensor AutogradContext::gradient(const at::Tensor& leaf) const try {
  const auto context = autograd::DistAutogradContainer::getInstance().retrieveContext(id_);
  const auto gradients = context->getGradients();
  const auto found = gradients.find(leaf);
  return found == gradients.end() ? at::Tensor() : found->value();
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

}  // namespace weft
