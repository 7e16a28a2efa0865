// SharedDeviceBackend's reductions: what each rank puts into its staging buffer in a round, and how
// it combines what the others have put there.
#include <algorithm>

#include "c10d_plugin/cuda/device_reduction.h"
#include "c10d_plugin/cuda/shared_device_backend.h"
#include "c10d_plugin/cuda/shares.h"
#include "c10d_plugin/engine/coalesced_work.h"
#include "c10d_plugin/tensors/op_checks.h"

namespace weft::process_group {

using c10d::OpType;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kDirect = 256 * 1024;  // bytes that every rank reduces by itself

// A rank's share of a piece that all reduce together.
at::Tensor shareOf(const at::Tensor& piece, int rank, int ranks) {
  const std::int64_t each = (piece.numel() + ranks - 1) / ranks;
  const std::int64_t from = std::min(each * rank, piece.numel());
  return piece.narrow(0, from, std::min(each, piece.numel() - from));
}

}  // namespace

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduceShares(DeviceOp op,
                                                               const c10d::ReduceOp& how,
                                                               milliseconds timeout, FlatCall call,
                                                               Tensors in, const at::Tensor& out) {
  const DeviceReduction reduction(how, op.element, op.title);
  call.uses(reduction.factor());
  op.reduction = reduction.code();
  op.shares = size_;
  op.gives = sizesOf(in);
  op.wants.assign(ranks(), out.numel());
  Tensors outs(ranks());
  outs[static_cast<std::size_t>(rank_)] = out;
  in = call.apart(std::move(in), outs, rank_);
  op.put = [in = std::move(in), reduction](const Piece& piece, const DeviceOp::Half& half) {
    for (std::size_t share = 0; share < in.size(); ++share) {
      const at::Tensor from = piece.of(in[share]);
      reduction.put(from, half(0, static_cast<int>(share), from.numel()));
    }
  };
  op.take = [out, reduction, own = rank_, size = size_](const Piece& piece,
                                                        const DeviceOp::Half& half) {
    const at::Tensor into = piece.of(out);
    Tensors all;
    for (int rank = 0; rank < size; ++rank)
      all.push_back(half(rank, own, into.numel()));
    reduction.combine(all, into);
  };
  return submit(std::move(op), timeout, std::move(call));
}

// Large tensors in two rounds: each rank reduces a share of the piece, then all take all shares.
SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduceWhole(DeviceOp op,
                                                              const c10d::ReduceOp& how,
                                                              milliseconds timeout,
                                                              const at::Tensor& tensor) {
  const DeviceReduction reduction(how, op.element, op.title);
  FlatCall call(op.title);
  const bool wanted = op.root < 0 || op.root == rank_;
  const at::Tensor flat = wanted ? call.updates(tensor) : call.reads(tensor);
  call.uses(reduction.factor());
  op.reduction = reduction.code();
  op.gives.assign(ranks(), flat.numel());
  op.wants = op.gives;
  if (op.root < 0 && size_ > 2 && tensor.nbytes() > kDirect) op.phases = 2;
  const bool by_shares = op.phases == 2;
  op.put = [flat, reduction, own = rank_, size = size_](const Piece& piece,
                                                        const DeviceOp::Half& half) {
    const at::Tensor whole = piece.of(flat);
    if (piece.phase == 0) return reduction.put(whole, half(own, 0, whole.numel()));
    const at::Tensor share = shareOf(whole, own, size);
    half(own, 0, share.numel()).copy_(share);
  };
  op.take = [flat, reduction, wanted, by_shares, own = rank_, size = size_](
                const Piece& piece, const DeviceOp::Half& half) {
    if (!wanted) return;
    const at::Tensor whole = piece.of(flat);
    if (piece.phase == 1) {
      for (int rank = 0; rank < size; ++rank) {
        const at::Tensor share = shareOf(whole, rank, size);
        if (rank != own) share.copy_(half(rank, 0, share.numel()));
      }
      return;
    }
    Tensors all;
    for (int rank = 0; rank < size; ++rank) {
      const at::Tensor part = half(rank, 0, whole.numel());
      all.push_back(by_shares ? shareOf(part, own, size) : part);
    }
    reduction.combine(all, by_shares ? shareOf(whole, own, size) : whole);
  };
  return submit(std::move(op), timeout, std::move(call));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& opts) {
  constexpr const char* kTitle = "weft:all_reduce";
  const at::Tensor& tensor = only(tensors, kTitle);
  check(tensors, kTitle);
  return reduceWhole(opOn(OpType::ALLREDUCE, kTitle, tensor), opts.reduceOp, opts.timeout, tensor);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  check({tensors.begin(), tensors.end()}, "weft:all_reduce");
  checkWritable(tensors, "weft:all_reduce");
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, opts));
  }
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& opts) {
  constexpr const char* kTitle = "weft:reduce";
  const at::Tensor& tensor = only(tensors, kTitle);
  check(tensors, kTitle);
  DeviceOp op = opOn(OpType::REDUCE, kTitle, tensor);
  op.root = checkRoot(opts.rootRank, size_, kTitle);
  return reduceWhole(std::move(op), opts.reduceOp, opts.timeout, tensor);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:reduce_scatter";
  const at::Tensor& output = only(outputs, kTitle);
  const Tensors& list = onePerRank(inputs, size_, kTitle);
  check(outputs, kTitle);
  check(list, kTitle);
  FlatCall call(kTitle);
  Tensors in = call.reads(list);
  const at::Tensor out = call.writes(output);
  return reduceShares(opOn(OpType::REDUCE_SCATTER, kTitle, output), opts.reduceOp, opts.timeout,
                      std::move(call), std::move(in), out);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:_reduce_scatter_base";
  check({output, input}, kTitle);
  checkTimes(input, output, ranks(), kTitle);
  FlatCall call(kTitle);
  Tensors in = equalParts(call.reads(input), ranks());
  const at::Tensor out = call.writes(output);
  return reduceShares(opOn(OpType::_REDUCE_SCATTER_BASE, kTitle, output), opts.reduceOp,
                      opts.timeout, std::move(call), std::move(in), out);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "weft:reduce_scatter_tensor_coalesced: needs as ",
              "many inputs as outputs, got ", inputs.size(), " and ", outputs.size());
  checkWritable(outputs, "weft:reduce_scatter_tensor_coalesced");
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at)
    works.push_back(_reduce_scatter_base(outputs[at], inputs[at], opts));
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

}  // namespace weft::process_group
