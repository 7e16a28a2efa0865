#include "pipe/workers/distributed_gradients.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <unordered_set>

#include "rpc_backend/core/private_member.h"

namespace weft::pipe {

namespace {

namespace ag = torch::autograd;
using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::autograd::DistAutogradContext;
using torch::distributed::rpc::RpcAgent;

WEFT_PRIVATE_MEMBER(Accumulate, &DistAutogradContext::accumulateGrad);
WEFT_PRIVATE_MEMBER(RunningTask, &DistAutogradContext::graphTask_);

// Gradients are shared with those that go to the stage before: never taken over.
constexpr std::size_t kNeverSteal = 0;

}  // namespace

BackwardKind backwardKind(const at::Tensor& leaf) {
  const auto* const asked = ag::get_current_graph_task_exec_info();
  TORCH_CHECK(asked != nullptr, "no backward runs here");
  if (asked->empty()) return BackwardKind::kAll;
  const auto found = asked->find(ag::impl::gradient_edge(leaf).function.get());
  const bool wanted = found != asked->end() && found->second.should_execute();
  return wanted ? BackwardKind::kDistributed : BackwardKind::kInputs;
}

std::optional<std::int64_t> currentContext() {
  if (!DistAutogradContainer::getInstance().hasValidContext()) return std::nullopt;
  return DistAutogradContainer::currentContextId();
}

void joinContext(std::int64_t context, const std::vector<std::string>& workers) {
  const auto here = DistAutogradContainer::getInstance().retrieveContext(context);
  const auto& task = (*here).*member(RunningTask{});
  const auto running = static_cast<std::uint64_t>(ag::get_current_graph_task_id());
  TORCH_CHECK(task != nullptr && task->id_ == running,
              "the backward of a pipeline's output is in another "
              "torch.distributed.autograd.context() than the one in which the output was taken");
  const auto agent = RpcAgent::getCurrentRpcAgent();
  for (const std::string& worker : workers)
    here->addKnownWorkerId(agent->getWorkerInfo(worker).id_);
}

std::vector<at::Tensor> leavesOf(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const ag::Node*> seen;
  ag::edge_list left;
  for (const at::Tensor& output : outputs)
    left.push_back(ag::impl::gradient_edge(output));
  while (!left.empty()) {
    const ag::Edge edge = std::move(left.back());
    left.pop_back();
    if (!edge.function || !seen.insert(edge.function.get()).second) continue;
    if (const auto* const last = dynamic_cast<ag::AccumulateGrad*>(edge.function.get()))
      leaves.push_back(last->variable);
    const auto& next = edge.function->next_edges();
    left.insert(left.end(), next.begin(), next.end());
  }
  return leaves;
}

void addToContext(std::int64_t context, const std::vector<at::Tensor>& leaves,
                  const std::vector<at::Tensor>& gradients) {
  TORCH_INTERNAL_ASSERT(leaves.size() == gradients.size());
  const auto here = DistAutogradContainer::getInstance().getOrCreateContext(context);
  for (std::size_t at = 0; at < leaves.size(); ++at) {
    if (gradients[at].defined())
      ((*here).*member(Accumulate{}))(leaves[at], gradients[at], kNeverSteal);
  }
}

}  // namespace weft::pipe
