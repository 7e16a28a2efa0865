#include "jit_ops/call/remote_backward_context.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/functions/recvrpc_backward.h>
#include <torch/csrc/distributed/autograd/functions/sendrpc_backward.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "jit_ops/call/calls.h"

namespace weft::ops {

namespace autograd = torch::distributed::autograd;
using pipe::makeNode;
using pipe::NodePtr;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Gradients, or the error in their place: whichever is set first. It may be used again.
class GradientPromise {
 public:
  std::future<variable_list> begin() {
    const std::lock_guard lock(mutex_);
    promise_.emplace();
    return promise_->get_future();
  }
  void set(variable_list gradients) {
    if (auto promise = take()) promise->set_value(std::move(gradients));
  }
  void fail(std::exception_ptr error) {
    if (auto promise = take()) promise->set_exception(std::move(error));
  }

 private:
  std::optional<std::promise<variable_list>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(promise_, std::nullopt);
  }

  std::mutex mutex_;
  std::optional<std::promise<variable_list>> promise_;
};

namespace {

// The node after SendRpcBackward. It stands before a leaf, which gets nothing, because distributed
// autograd runs only nodes that lead to a leaf.
struct GradientSink : Node {
  explicit GradientSink(std::shared_ptr<GradientPromise> target) : promise(std::move(target)) {
    const at::Tensor leaf = at::empty({0}).set_requires_grad(true);
    add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  }
  variable_list apply(variable_list&& gradients) override {
    promise->set(std::move(gradients));
    return {at::Tensor()};
  }
  const std::shared_ptr<GradientPromise> promise;
};

// The calls by number. Never destroyed: backward may run while the process exits.
struct Registry {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<RemoteBackwardContext>> all;
  std::int64_t last = kNoRemoteBackward;
};

Registry& registry() {
  static auto* one = new Registry;
  return *one;
}

}  // namespace

bool inAutogradContext() {
  return torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet() &&
         autograd::DistAutogradContainer::getInstance().hasValidContext();
}

RemoteBackwardContext::RemoteBackwardContext(double timeout)
    : timeout_(timeout),
      context_(autograd::DistAutogradContainer::getInstance().currentContext()),
      promise_(std::make_shared<GradientPromise>()) {}

Values RemoteBackwardContext::open(at::TensorList inputs, at::IntArrayRef needed) {
  const at::AutoDispatchBelowADInplaceOrView guard;  // or detach() gives views of the inputs
  Values out;
  for (const at::Tensor& input : inputs)
    out.emplace_back(input.detach());
  if (needed.empty()) return out;
  sink_ = NodePtr(makeNode<GradientSink>(promise_));
  for (const std::int64_t index : needed)
    torch::autograd::set_history(out.at(static_cast<std::size_t>(index)).toTensor(), sink_);
  return out;
}

bool RemoteBackwardContext::close(const Tensors& outputs, const std::string& worker) {
  worker_ = worker;
  for (const at::Tensor& output : outputs) {
    const NodePtr node = output.grad_fn();
    if (receiver_ == nullptr && node != nullptr) receiver_ = node;
    place_.push_back(node == nullptr || node != receiver_ ? -1
                                                          : static_cast<int>(output.output_nr()));
  }
  if (receiver_ == nullptr) return false;
  if (const auto context = context_.lock()) {
    for (const auto& [number, node] : context->recvFunctions())
      if (NodePtr(node) == receiver_) message_ = number;
  }
  return message_.has_value();
}

std::int64_t RemoteBackwardContext::keep(std::shared_ptr<RemoteBackwardContext> call) {
  Registry& here = registry();
  // Released without the lock: a graph may hold objects of the program.
  std::vector<std::shared_ptr<RemoteBackwardContext>> over;
  const std::lock_guard lock(here.mutex);
  std::erase_if(here.all, [&](auto& one) {
    if (!one.second->context_.expired()) return false;
    over.push_back(std::move(one.second));
    return true;
  });
  here.all.emplace(++here.last, std::move(call));
  return here.last;
}

// Sends gradients as RecvRpcBackward does. The distributed backward also waits for the answer. A
// tensor that was returned twice is one output of the receiver.
void RemoteBackwardContext::send(Context& here, at::TensorList gradients, at::IntArrayRef outputs) {
  variable_list out(receiver_->num_inputs());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int to = place_.at(static_cast<std::size_t>(outputs[i]));
    if (to < 0) continue;
    at::Tensor& sum = out.at(static_cast<std::size_t>(to));
    sum = sum.defined() ? sum + gradients[i] : gradients[i];
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined()) out[i] = receiver_->input_metadata(i).zeros_like();
  }
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  autograd::PropagateGradientsReq request({here.contextId(), *message_}, std::move(out),
                                          keep_graph);
  const auto agent = currentAgent();
  const FuturePtr answer =
      agent->send(agent->getWorkerInfo(worker_), std::move(request).toMessage());
  here.addOutstandingRpc(answer);
  answer->addCallback([promise = promise_](Future& answered) {
    if (answered.hasError()) promise->fail(answered.exception_ptr());
  });
}

// Nothing at the worker needs gradients, so none come from there. Distributed autograd waits for
// each call that it recorded, so it gets zeros from here.
void RemoteBackwardContext::endHere(const std::shared_ptr<Context>& here, at::TensorList inputs,
                                    at::IntArrayRef needed) const {
  for (const auto& [number, node] : here->sendFunctions()) {
    if (node->num_outputs() == 0 || node->next_edge(0).function != sink_) continue;
    variable_list zeros;
    for (const std::int64_t index : needed)
      zeros.push_back(at::zeros_like(inputs[static_cast<std::size_t>(index)]));
    node->setGrads(zeros);
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    autograd::DistEngine::getInstance().executeSendFunctionAsync(here, node, keep_graph);
    return;
  }
}

variable_list RemoteBackwardContext::wait(std::future<Tensors> coming,
                                          const std::string& what) const {
  const double seconds =
      timeout_ < 0 ? static_cast<double>(currentAgent()->getRpcTimeout().count()) / 1000 : timeout_;
  const bool in_time = seconds == 0 || coming.wait_for(std::chrono::duration<double>(seconds)) ==
                                           std::future_status::ready;
  TORCH_CHECK(in_time, "no gradients came back from ", what, " within ", seconds, " s");
  return coming.get();
}

RemoteBackwardContext::Tensors RemoteBackwardContext::backward(
    std::int64_t number, const std::string& what, at::TensorList gradients, at::IntArrayRef outputs,
    at::TensorList inputs, at::IntArrayRef needed) {
  TORCH_CHECK(number != kNoRemoteBackward, "gradients were asked for through ", what,
              ", but that call was not recorded: make the call and the backward inside one `with "
              "torch.distributed.autograd.context()`");
  std::shared_ptr<RemoteBackwardContext> call;
  {
    Registry& here = registry();
    const std::lock_guard lock(here.mutex);
    if (const auto found = here.all.find(number); found != here.all.end()) call = found->second;
  }
  const auto context = call == nullptr ? nullptr : call->context_.lock();
  TORCH_CHECK(context != nullptr, "gradients were asked for through ", what,
              " after the torch.distributed.autograd.context() of that call had ended");
  // Otherwise nothing would take the gradients that come back. (This cannot tell the backward of
  // another context.)
  TORCH_CHECK(autograd::DistEngine::getInstance().numBackwardPasses() > 0, "gradients through ",
              what,
              " go by torch.distributed.autograd.backward(context, [loss]): loss.backward() stays "
              "in this process");
  std::future<variable_list> coming = call->promise_->begin();
  if (call->message_.has_value()) {
    call->send(*context, gradients, outputs);
  } else if (!needed.empty()) {
    call->endHere(context, inputs, needed);
  }
  if (needed.empty()) return {};
  try {
    return call->wait(std::move(coming), what);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), " (gradients through ", what, ")");
  }
}

}  // namespace weft::ops
