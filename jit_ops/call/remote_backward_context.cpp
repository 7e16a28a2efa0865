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
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "third_party/torch/torch_compat.h"

namespace weft::ops {

namespace {

namespace autograd = torch::distributed::autograd;
namespace trpc = torch::distributed::rpc;
using pipe::makeNode;
using pipe::NodePtr;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Gradients that come, or the reason why none do: whichever is first.
class Arrival {
 public:
  std::future<variable_list> begin() {
    const std::lock_guard lock(mutex_);
    promise_.emplace();
    return promise_->get_future();
  }
  void come(variable_list gradients) {
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

// Where SendRpcBackward leads. It stands before a leaf because distributed autograd runs only what
// leads to one; the leaf itself gets nothing.
struct Landing : Node {
  explicit Landing(std::shared_ptr<Arrival> arrival_) : arrival(std::move(arrival_)) {
    const at::Tensor leaf = at::empty({0}).set_requires_grad(true);
    add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  }
  variable_list apply(variable_list&& gradients) override {
    arrival->come(std::move(gradients));
    return {at::Tensor()};
  }
  const std::shared_ptr<Arrival> arrival;
};

trpc::RpcAgent& agent() { return *trpc::RpcAgent::getCurrentRpcAgent(); }

}  // namespace

bool inAutogradContext() {
  return trpc::RpcAgent::isCurrentRpcAgentSet() &&
         autograd::DistAutogradContainer::getInstance().hasValidContext();
}

struct RemoteBackwardContext::Parts {
  std::string what;
  double timeout;
  std::weak_ptr<autograd::DistAutogradContext> context = {};
  std::shared_ptr<Arrival> arrival = std::make_shared<Arrival>();
  NodePtr landing = {};
  std::optional<std::int64_t> message = {};  // that brought the outputs, in the context's numbers
  NodePtr receiver = {};
  std::string worker = {};
  std::vector<int> place = {};  // of each output's gradient among the receiver's; -1: none
  std::size_t needed = 0;

  void send(autograd::DistAutogradContext& here, at::TensorList gradients, at::IntArrayRef outputs);
  void endHere(const std::shared_ptr<autograd::DistAutogradContext>& here, at::TensorList inputs,
               at::IntArrayRef indices);
  variable_list wait(std::future<variable_list> coming);
};

namespace {

// Numbers and routes. Never destroyed: backward may run while the process exits.
struct Routes {
  std::mutex mutex;
  std::map<std::int64_t, std::pair<std::weak_ptr<autograd::DistAutogradContext>,
                                   std::shared_ptr<RemoteBackwardContext>>>
      all;
  std::int64_t last = kNoRemoteBackward;
};

Routes& routes() {
  static auto* one = new Routes;
  return *one;
}

}  // namespace

RemoteBackwardContext::RemoteBackwardContext(std::string what, double timeout)
    : parts_(new Parts{.what = std::move(what), .timeout = timeout}) {
  parts_->context = autograd::DistAutogradContainer::getInstance().currentContext();
}

RemoteBackwardContext::~RemoteBackwardContext() = default;

Values RemoteBackwardContext::open(at::TensorList inputs, at::IntArrayRef needed) {
  const at::AutoDispatchBelowADInplaceOrView guard;  // or detach() gives views of the inputs
  Values out;
  for (const at::Tensor& input : inputs)
    out.emplace_back(input.detach());
  parts_->needed = needed.size();
  if (needed.empty()) return out;
  parts_->landing = NodePtr(makeNode<Landing>(parts_->arrival));
  for (const std::int64_t index : needed)
    torch::autograd::set_history(out.at(static_cast<std::size_t>(index)).toTensor(),
                                 parts_->landing);
  return out;
}

bool RemoteBackwardContext::close(const std::vector<at::Tensor>& outputs,
                                  const std::string& worker) {
  parts_->worker = worker;
  for (const at::Tensor& output : outputs) {
    const NodePtr node = output.grad_fn();
    if (parts_->receiver == nullptr && node != nullptr) parts_->receiver = node;
    parts_->place.push_back(
        node == nullptr || node != parts_->receiver ? -1 : static_cast<int>(output.output_nr()));
  }
  if (parts_->receiver == nullptr) return false;
  if (const auto context = parts_->context.lock()) {
    for (const auto& [number, node] : context->recvFunctions())
      if (NodePtr(node) == parts_->receiver) parts_->message = number;
  }
  return parts_->message.has_value();
}

std::int64_t RemoteBackwardContext::keep(std::shared_ptr<RemoteBackwardContext> route) {
  Routes& here = routes();
  // Let go of without the lock: what a graph holds may be a program's own.
  std::vector<std::shared_ptr<RemoteBackwardContext>> over;
  const std::lock_guard lock(here.mutex);
  std::erase_if(here.all, [&](auto& one) {
    if (!one.second.first.expired()) return false;
    over.push_back(std::move(one.second.second));
    return true;
  });
  auto context = route->parts_->context;
  here.all.emplace(++here.last, std::pair(std::move(context), std::move(route)));
  return here.last;
}

// As RecvRpcBackward sends them. The distributed backward ends when the answer has come, too.
void RemoteBackwardContext::Parts::send(autograd::DistAutogradContext& here,
                                        at::TensorList gradients, at::IntArrayRef outputs) {
  variable_list out(receiver->num_inputs());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int to = place.at(static_cast<std::size_t>(outputs[i]));
    if (to >= 0) out.at(static_cast<std::size_t>(to)) = gradients[i];
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined()) out[i] = receiver->input_metadata(i).zeros_like();
  }
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  autograd::PropagateGradientsReq request({here.contextId(), *message}, std::move(out), keep_graph);
  const FuturePtr answer =
      agent().send(agent().getWorkerInfo(worker), std::move(request).toMessage());
  here.addOutstandingRpc(answer);
  answer->addCallback([waiting = arrival](Future& answered) {
    if (answered.hasError()) waiting->fail(answered.exception_ptr());
  });
}

// Nothing at the worker needs gradients, so none come from there: distributed autograd, which waits
// for each call that it recorded, gets zeros from here.
void RemoteBackwardContext::Parts::endHere(
    const std::shared_ptr<autograd::DistAutogradContext>& here, at::TensorList inputs,
    at::IntArrayRef indices) {
  for (const auto& [number, node] : here->sendFunctions()) {
    if (node->num_outputs() == 0 || node->next_edge(0).function != landing) continue;
    variable_list zeros;
    for (const std::int64_t index : indices)
      zeros.push_back(at::zeros_like(inputs[static_cast<std::size_t>(index)]));
    node->setGrads(zeros);
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    autograd::DistEngine::getInstance().executeSendFunctionAsync(here, node, keep_graph);
    return;
  }
}

variable_list RemoteBackwardContext::Parts::wait(std::future<variable_list> coming) {
  const double seconds =
      timeout < 0 ? static_cast<double>(agent().getRpcTimeout().count()) / 1000 : timeout;
  const bool in_time = seconds == 0 || coming.wait_for(std::chrono::duration<double>(seconds)) ==
                                           std::future_status::ready;
  TORCH_CHECK(in_time, "no gradients came back from ", what, " within ", seconds, " s");
  return coming.get();
}

std::vector<at::Tensor> RemoteBackwardContext::goBack(std::int64_t number, const std::string& what,
                                                      at::TensorList gradients,
                                                      at::IntArrayRef outputs,
                                                      at::TensorList inputs,
                                                      at::IntArrayRef needed) {
  TORCH_CHECK(number != kNoRemoteBackward, "gradients were asked for through ", what,
              ", but that call was not recorded: make the call and the backward inside one `with "
              "torch.distributed.autograd.context()`");
  std::shared_ptr<RemoteBackwardContext> route;
  {
    Routes& here = routes();
    const std::lock_guard lock(here.mutex);
    if (const auto found = here.all.find(number); found != here.all.end())
      route = found->second.second;
  }
  const auto context = route == nullptr ? nullptr : route->parts_->context.lock();
  TORCH_CHECK(context != nullptr, "gradients were asked for through ", what,
              " after the torch.distributed.autograd.context() of that call had ended");
  // Else nobody would take what comes back. (While another context's backward runs this cannot be
  // told apart.)
  TORCH_CHECK(autograd::DistEngine::getInstance().numBackwardPasses() > 0, "gradients through ",
              what,
              " go by torch.distributed.autograd.backward(context, [loss]): loss.backward() stays "
              "in this process");
  Parts& parts = *route->parts_;
  std::future<variable_list> coming = parts.arrival->begin();
  if (!parts.message.has_value()) {
    if (!needed.empty()) parts.endHere(context, inputs, needed);
  } else {
    parts.send(*context, gradients, outputs);
  }
  if (needed.empty()) return {};
  try {
    return parts.wait(std::move(coming));
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), " (gradients through ", what, ")");
  }
}

}  // namespace weft::ops
