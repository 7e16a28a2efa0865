// The collectives as futures, for TorchScript's `fut.wait()` and torch.jit.wait: the dispatcher
// knows no such type, so these are operators of TorchScript's own, which saved models keep.
#include <c10/util/Exception.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jit_ops/collectives/collective_starts.h"
#include "jit_ops/collectives/collectives.h"

namespace weft::ops {

namespace {

using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;

// Futures carry no gradients, so a tensor that needs them is refused rather than cut off.
at::Tensor popTensor(Stack& stack, const char* op) {
  at::Tensor x = pop(stack).toTensor();
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()), op,
              "_async carries no gradients: give it x.detach(), or use ", op);
  return x;
}

}  // namespace

std::vector<std::optional<Operator>> asyncCollectives() {
  // Nothing may drop, fold or reorder what other ranks take part in.
  const auto op = [](const char* schema, Started (*start)(Stack&)) {
    return Operator(
        schema, [start](Stack& stack) { push(stack, start(stack).future()); },
        c10::AliasAnalysisKind::CONSERVATIVE);
  };
  return {
      op("weft::send_async(Tensor x, int dst, str group, int tag=0) -> Future(NoneType)",
         [](Stack& stack) {
           const std::int64_t tag = pop(stack).toInt();
           const std::string group = pop(stack).toStringRef();
           const std::int64_t to = pop(stack).toInt();
           return startSend(popTensor(stack, "send"), to, group, tag);
         }),
      op("weft::recv_async(Tensor like, int src, str group, int tag=0) -> Future(Tensor)",
         [](Stack& stack) {
           const std::int64_t tag = pop(stack).toInt();
           const std::string group = pop(stack).toStringRef();
           const std::int64_t from = pop(stack).toInt();
           return startRecv(pop(stack).toTensor().detach(), from, group, tag);
         }),
      op("weft::all_reduce_async(Tensor x, str op, str group) -> Future(Tensor)",
         [](Stack& stack) {
           const std::string group = pop(stack).toStringRef();
           const std::string reduction = pop(stack).toStringRef();
           return startAllReduce(popTensor(stack, "all_reduce"), reduction, group);
         }),
      op("weft::broadcast_async(Tensor x, int src, str group) -> Future(Tensor)",
         [](Stack& stack) {
           const std::string group = pop(stack).toStringRef();
           const std::int64_t from = pop(stack).toInt();
           return startBroadcast(popTensor(stack, "broadcast"), from, group);
         }),
      op("weft::reduce_async(Tensor x, int dst, str op, str group) -> Future(Tensor)",
         [](Stack& stack) {
           const std::string group = pop(stack).toStringRef();
           const std::string reduction = pop(stack).toStringRef();
           const std::int64_t to = pop(stack).toInt();
           return startReduce(popTensor(stack, "reduce"), to, reduction, group);
         }),
      op("weft::gather_async(Tensor x, int dst, str group) -> Future(Tensor)",
         [](Stack& stack) {
           const std::string group = pop(stack).toStringRef();
           const std::int64_t to = pop(stack).toInt();
           return startGather(popTensor(stack, "gather"), to, group);
         }),
      op("weft::scatter_async(Tensor x, int src, str group) -> Future(Tensor)",
         [](Stack& stack) {
           const std::string group = pop(stack).toStringRef();
           const std::int64_t from = pop(stack).toInt();
           return startScatter(popTensor(stack, "scatter"), from, group);
         }),
      op("weft::barrier_async(str group) -> Future(NoneType)",
         [](Stack& stack) { return startBarrier(pop(stack).toStringRef()); }),
  };
}

}  // namespace weft::ops
