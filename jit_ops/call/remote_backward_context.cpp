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

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/gradient_exchange.h"
#include "jit_ops/call/interop_pool.h"

namespace weft::ops {

namespace autograd = torch::distributed::autograd;
using pipe::makeNode;
using pipe::NodePtr;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// The node after SendRpcBackward. It stands before a leaf, which gets nothing, because distributed
// autograd runs only nodes that lead to a leaf.
struct GradientSink : Node {
  explicit GradientSink(std::shared_ptr<GradientExchange> target) : exchange(std::move(target)) {
    const at::Tensor leaf = at::empty({0}).set_requires_grad(true);
    add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  }
  variable_list apply(variable_list&& gradients) override {
    exchange->set(std::move(gradients));
    return {at::Tensor()};
  }
  const std::shared_ptr<GradientExchange> exchange;
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

// How often a wait looks whether the context is still there.
constexpr std::chrono::seconds kLook{1};

}  // namespace

bool inAutogradContext() {
  return torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet() &&
         autograd::DistAutogradContainer::getInstance().hasValidContext();
}

std::int64_t whyNotRecorded() {
  return torch::autograd::get_current_graph_task_id() < 0 ? kNoRemoteBackward : kCalledInBackward;
}

RemoteBackwardContext::RemoteBackwardContext(double timeout)
    : timeout_(timeout),
      context_(autograd::DistAutogradContainer::getInstance().currentContext()),
      exchange_(std::make_shared<GradientExchange>()) {}

Values RemoteBackwardContext::open(at::TensorList inputs, at::IntArrayRef needed) {
  const at::AutoDispatchBelowADInplaceOrView guard;  // or detach() gives views of the inputs
  Values out;
  for (const at::Tensor& input : inputs)
    out.emplace_back(input.detach());
  if (needed.empty()) return out;
  sink_ = NodePtr(makeNode<GradientSink>(exchange_));
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

std::shared_ptr<RemoteBackwardContext> RemoteBackwardContext::find(std::int64_t number) {
  Registry& here = registry();
  const std::lock_guard lock(here.mutex);
  const auto found = here.all.find(number);
  return found == here.all.end() ? nullptr : found->second;
}

void RemoteBackwardContext::failAll(const std::shared_ptr<Context>& here,
                                    const std::exception_ptr& error) {
  std::vector<std::shared_ptr<GradientExchange>> exchanges;
  {
    Registry& calls = registry();
    const std::lock_guard lock(calls.mutex);
    for (const auto& [number, call] : calls.all) {
      const auto& of = call->context_;
      if (!of.owner_before(here) && !here.owner_before(of)) exchanges.push_back(call->exchange_);
    }
  }
  for (const auto& one : exchanges)
    one->fail(error);
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
  here.addOutstandingRpc(exchange_->sent(answer));
  answer->addCallback([exchange = exchange_, context = context_](Future& answered) {
    const auto still = context.lock();
    if (still == nullptr) return;  // what torch adds to the outstanding ones would use it
    if (exchange->answered(answered) && answered.hasError())
      failAll(still, answered.exception_ptr());
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

variable_list RemoteBackwardContext::wait(std::future<Tensors> coming, std::int64_t context,
                                          const std::string& what) const {
  using std::chrono::steady_clock;
  const std::chrono::duration<double> limit(
      timeout_ < 0 ? static_cast<double>(currentAgent()->getRpcTimeout().count()) / 1000
                   : timeout_);
  const auto started = steady_clock::now();
  while (true) {
    const std::chrono::duration<double> left = started + limit - steady_clock::now();
    const bool bounded = limit.count() > 0;
    TORCH_CHECK(!bounded || left.count() > 0, "no gradients came back from ", what, " within ",
                limit.count(), " s");
    const std::chrono::duration<double> slice = kLook;
    if (coming.wait_for(bounded ? std::min(left, slice) : slice) == std::future_status::ready)
      return coming.get();
    // Throws when the backward has failed elsewhere, and the program has left the context.
    autograd::DistAutogradContainer::getInstance().isValidContext(context);
  }
}

void RemoteBackwardContext::checkRecorded(std::int64_t number, const std::string& what) {
  TORCH_CHECK(number != kNoRemoteBackward, "gradients were asked for through ", what,
              ", but that call was not recorded: make the call and the backward inside one `with "
              "torch.distributed.autograd.context()`");
  TORCH_CHECK(number != kCalledInBackward, "gradients were asked for through ", what,
              ", but that call was made anew within a backward, as torch.utils.checkpoint does, "
              "where no call is recorded: take call_tensors out of what is checkpointed, or use "
              "weft.call there");
}

variable_list RemoteBackwardContext::exchange(const std::shared_ptr<Context>& here,
                                              const std::string& what, at::TensorList gradients,
                                              at::IntArrayRef outputs, at::TensorList inputs,
                                              at::IntArrayRef needed) try {
  // Before anything is sent, because it may refuse.
  std::optional<ScopedPoolWait> waits;
  if (!needed.empty()) waits.emplace("the gradients through " + what);
  std::future<variable_list> coming = exchange_->begin();
  if (message_.has_value()) {
    send(*here, gradients, outputs);
  } else if (!needed.empty()) {
    endHere(here, inputs, needed);
  }
  return needed.empty() ? Tensors() : wait(std::move(coming), here->contextId(), what);
} catch (...) {
  failAll(here, std::current_exception());
  throw;
}

RemoteBackwardContext::Tensors RemoteBackwardContext::backward(
    std::int64_t number, const std::string& what, at::TensorList gradients, at::IntArrayRef outputs,
    at::TensorList inputs, at::IntArrayRef needed) try {
  checkRecorded(number, what);
  const auto call = find(number);
  const auto context = call == nullptr ? nullptr : call->context_.lock();
  TORCH_CHECK(context != nullptr, "gradients were asked for through ", what,
              " after the torch.distributed.autograd.context() of that call had ended");
  // Otherwise nothing would take the gradients that come back. (This cannot tell the backward of
  // another context.)
  TORCH_CHECK(autograd::DistEngine::getInstance().numBackwardPasses() > 0, "gradients through ",
              what,
              " go by torch.distributed.autograd.backward(context, [loss]): loss.backward() stays "
              "in this process");
  return call->exchange(context, what, gradients, outputs, inputs, needed);
} catch (const c10::Error&) {
  throw;
} catch (const std::exception& error) {
  TORCH_CHECK(false, error.what(), " (gradients through ", what, ")");
}

}  // namespace weft::ops
