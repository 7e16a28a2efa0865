#include "jit_ops/collectives/collective_starts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <exception>
#include <map>
#include <string>
#include <utility>

namespace weft::ops {

namespace {

using c10::string_view;

int rankIn(const c10d::ProcessGroup& group, std::int64_t rank, string_view name) {
  TORCH_CHECK(rank >= 0 && rank < group.getSize(), "there is no rank ", rank, " in group '", name,
              "' of ", group.getSize(), " ranks");
  return static_cast<int>(rank);
}

c10d::ReduceOp toReduceOp(string_view op) {
  static const std::map<string_view, c10d::ReduceOp::RedOpType> kOps = {
      {"sum", c10d::ReduceOp::SUM},         {"avg", c10d::ReduceOp::AVG},
      {"product", c10d::ReduceOp::PRODUCT}, {"min", c10d::ReduceOp::MIN},
      {"max", c10d::ReduceOp::MAX},         {"band", c10d::ReduceOp::BAND},
      {"bor", c10d::ReduceOp::BOR},         {"bxor", c10d::ReduceOp::BXOR}};
  const auto found = kOps.find(op);
  TORCH_CHECK(found != kOps.end(), "'", op,
              "' is not a reduction; use sum, avg, product, min, max, band, bor or bxor");
  return found->second;
}

// The result of a collective is a new tensor, and so what it is made in.
at::Tensor copyOf(const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

// The memory of inference mode may not be changed by who waits for a future.
at::Tensor taken(at::Tensor result, bool zero_result) {
  return zero_result ? at::zeros_like(result) : std::move(result);
}

int toTag(std::int64_t tag) {
  TORCH_CHECK(std::in_range<int>(tag), "a tag is a number of 32 bits, got ", tag);
  return static_cast<int>(tag);
}

}  // namespace

at::Tensor PendingCollective::finish() && {
  if (work != nullptr) work->wait();
  return taken(std::move(result), zero_result);
}

c10::intrusive_ptr<c10::ivalue::Future> PendingCollective::future() && {
  const auto begun = work->getFuture();
  const c10::TypePtr type =
      result.defined() ? c10::TypePtr(c10::TensorType::get()) : c10::TypePtr(c10::NoneType::get());
  return begun->then(
      [kept = std::move(*this)](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        if (!kept.result.defined()) return at::IValue();
        return at::IValue(taken(kept.result, kept.zero_result));
      },
      type);
}

c10::intrusive_ptr<c10d::ProcessGroup> groupOf(string_view name) {
  try {
    return c10d::resolve_process_group(std::string(name));
  } catch (const std::exception&) {
    TORCH_CHECK(false, "this process is in no process group named '", name,
                "': give its group_name (torch.distributed.group.WORLD.group_name in Python, the "
                "name given to weft::joinProcessGroup in C++)");
  }
}

PendingCollective startSend(bool /*is_async*/, const at::Tensor& x, std::int64_t to,
                            string_view name, std::int64_t tag) {
  const auto group = groupOf(name);
  std::vector<at::Tensor> tensors = {x.contiguous()};
  auto work = group->send(tensors, rankIn(*group, to, name), toTag(tag));
  return {.work = std::move(work), .inputs = std::move(tensors)};
}

PendingCollective startRecv(bool /*is_async*/, const at::Tensor& like, std::int64_t from,
                            string_view name, std::int64_t tag) {
  const auto group = groupOf(name);
  std::vector<at::Tensor> tensors = {at::empty_like(like, at::MemoryFormat::Contiguous)};
  auto work = group->recv(tensors, rankIn(*group, from, name), toTag(tag));
  return {.work = std::move(work), .result = tensors.front()};
}

PendingCollective startAllReduce(bool is_async, const at::Tensor& x, string_view op,
                                 string_view name) {
  const auto group = groupOf(name);
  c10d::AllreduceOptions options;
  options.asyncOp = is_async;
  options.reduceOp = toReduceOp(op);
  std::vector<at::Tensor> tensors = {copyOf(x)};
  return {.work = group->allreduce(tensors, options), .result = tensors.front()};
}

PendingCollective startBroadcast(bool is_async, const at::Tensor& x, std::int64_t from,
                                 string_view name) {
  const auto group = groupOf(name);
  c10d::BroadcastOptions options;
  options.asyncOp = is_async;
  options.rootRank = rankIn(*group, from, name);
  std::vector<at::Tensor> tensors = {copyOf(x)};
  return {.work = group->broadcast(tensors, options), .result = tensors.front()};
}

PendingCollective startReduce(bool is_async, const at::Tensor& x, std::int64_t to, string_view op,
                              string_view name) {
  const auto group = groupOf(name);
  c10d::ReduceOptions options;
  options.asyncOp = is_async;
  options.reduceOp = toReduceOp(op);
  options.rootRank = rankIn(*group, to, name);
  std::vector<at::Tensor> tensors = {copyOf(x)};
  return {.work = group->reduce(tensors, options),
          .result = tensors.front(),
          .zero_result = group->getRank() != options.rootRank};
}

std::vector<c10::SymInt> gatheredSizes(const at::Tensor& x, const c10d::ProcessGroup& group,
                                       std::int64_t to) {
  std::vector<c10::SymInt> sizes = {group.getRank() == to ? group.getSize() : 0};
  for (const c10::SymInt& size : x.sym_sizes())
    sizes.push_back(size);
  return sizes;
}

PendingCollective startGather(bool is_async, const at::Tensor& x, std::int64_t to,
                              string_view name) {
  const auto group = groupOf(name);
  c10d::GatherOptions options;
  options.asyncOp = is_async;
  options.rootRank = rankIn(*group, to, name);
  at::Tensor out = at::empty_symint(gatheredSizes(x, *group, to), x.options());
  std::vector<std::vector<at::Tensor>> outputs;
  if (group->getRank() == to) outputs.push_back(out.unbind());
  std::vector<at::Tensor> inputs = {x.contiguous()};
  auto work = group->gather(outputs, inputs, options);
  return {.work = std::move(work), .result = std::move(out), .inputs = std::move(inputs)};
}

PendingCollective startScatter(bool is_async, const at::Tensor& x, std::int64_t from,
                               string_view name) {
  const auto group = groupOf(name);
  c10d::ScatterOptions options;
  options.asyncOp = is_async;
  options.rootRank = rankIn(*group, from, name);
  const std::int64_t rows = group->getRank() == from ? group->getSize() : 0;
  TORCH_CHECK(x.dim() > 0 && x.size(0) == rows, "scatter from rank ", from, " of group '", name,
              "' takes ", rows, " rows on rank ", group->getRank(), ", got a tensor of ", x.sizes(),
              rows == 0 ? ": torch.empty(0, …) says what a row is like" : "");
  std::vector<at::Tensor> outputs = {at::empty(x.sizes().slice(1), x.options())};
  std::vector<std::vector<at::Tensor>> inputs;
  std::vector<at::Tensor> kept;
  if (rows > 0) {
    kept = x.contiguous().unbind();
    inputs.push_back(kept);
  }
  auto work = group->scatter(outputs, inputs, options);
  return {.work = std::move(work), .result = outputs.front(), .inputs = std::move(kept)};
}

PendingCollective startBarrier(bool is_async, string_view name) {
  c10d::BarrierOptions options;
  options.asyncOp = is_async;
  return {.work = groupOf(name)->barrier(options)};
}

}  // namespace weft::ops
