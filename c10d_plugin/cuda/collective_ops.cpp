// SharedDeviceBackend's collectives: what each rank puts into its staging buffer in a round, and
// what it takes out of the others'.
#include <algorithm>

#include "c10d_plugin/cuda/device_reduction.h"
#include "c10d_plugin/cuda/shared_device_backend.h"

namespace weft::process_group {

using c10d::OpType;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kDirect = 256 * 1024;  // bytes that every rank reduces by itself

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* title) {
  TORCH_CHECK(tensors.size() == 1, title, ": takes one tensor, got ", tensors.size());
  return tensors.front();
}

const std::vector<at::Tensor>& listOf(const std::vector<std::vector<at::Tensor>>& lists,
                                      std::size_t ranks, const char* title) {
  TORCH_CHECK(lists.size() == 1 && lists.front().size() == ranks, title,
              ": takes one list of a tensor for each of the ", ranks, " ranks");
  return lists.front();
}

std::vector<at::Tensor> equalParts(const at::Tensor& flat, std::size_t ranks) {
  return flat.chunk(static_cast<std::int64_t>(ranks));
}

// The parts that all_to_all_single's split sizes (rows of dimension 0) name; none: equal parts.
std::vector<at::Tensor> parts(const at::Tensor& flat, std::int64_t rows,
                              const std::vector<std::int64_t>& splits, std::size_t ranks,
                              const char* title) {
  std::vector<std::int64_t> sizes = splits;
  if (sizes.empty()) sizes.assign(ranks, rows / static_cast<std::int64_t>(ranks));
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    TORCH_CHECK(size >= 0, title, ": a split size is negative: ", size);
    sum += size;
  }
  TORCH_CHECK(sizes.size() == ranks && sum == rows, title, ": the split sizes of the ", ranks,
              " ranks must add up to dimension 0, which is ", rows);
  const std::int64_t row = rows == 0 ? 0 : flat.numel() / rows;
  std::vector<at::Tensor> made;
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    made.push_back(flat.narrow(0, at, size * row));
    at += size * row;
  }
  return made;
}

std::int64_t rowsOf(const at::Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(0); }

// A rank's share of a piece that all reduce together.
at::Tensor shareOf(const at::Tensor& piece, int rank, int ranks) {
  const std::int64_t each = (piece.numel() + ranks - 1) / ranks;
  const std::int64_t from = std::min(each * rank, piece.numel());
  return piece.narrow(0, from, std::min(each, piece.numel() - from));
}

std::vector<std::int64_t> sizesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : tensors)
    sizes.push_back(tensor.defined() ? tensor.numel() : kAnySize);
  return sizes;
}

void checkTimes(const at::Tensor& whole, const at::Tensor& share, std::size_t ranks,
                const char* title) {
  TORCH_CHECK(whole.numel() == share.numel() * static_cast<std::int64_t>(ranks), title,
              ": the larger tensor must have ", ranks, " times the elements of the smaller, got ",
              whole.numel(), " and ", share.numel());
}

}  // namespace

void SharedDeviceBackend::check(const Tensors& tensors, const char* title) const {
  TORCH_CHECK(!tensors.empty(), title, ": needs a tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.defined(), title, ": a tensor is undefined");
    TORCH_CHECK(tensor.device() == device_, title, ": this rank's part of the group is on ",
                device_, "; a tensor is on ", tensor.device());
    TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(), title,
                ": tensors of ranks that share a device must be dense and not quantised");
    TORCH_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), title,
                ": all tensors must have one type, got ", tensor.scalar_type(), " and ",
                tensors.front().scalar_type());
  }
}

DeviceOp SharedDeviceBackend::opOn(OpType type, const char* title, const at::Tensor& tensor) const {
  DeviceOp op;
  op.type = type;
  op.title = title;
  op.element = tensor.scalar_type();
  op.gives.assign(ranks(), 0);
  op.wants.assign(ranks(), kAnySize);
  return op;
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::exchange(DeviceOp op, milliseconds timeout,
                                                           FlatCall call, Tensors in, Tensors out) {
  const bool apart = op.shares > 1;  // each rank gets another part
  if (in.size() == ranks()) op.gives = sizesOf(in);
  if (in.size() == 1) op.gives.assign(ranks(), in.front().numel());
  op.wants = sizesOf(out);
  op.put = [in = std::move(in)](const Piece& piece, const DeviceOp::Half& half) {
    for (std::size_t share = 0; share < in.size(); ++share) {
      const at::Tensor from = piece.of(in[share]);
      half(0, static_cast<int>(share), from.numel()).copy_(from);
    }
  };
  op.take = [out = std::move(out), share = apart ? rank_ : 0](const Piece& piece,
                                                              const DeviceOp::Half& half) {
    for (std::size_t rank = 0; rank < out.size(); ++rank) {
      if (!out[rank].defined()) continue;
      const at::Tensor into = piece.of(out[rank]);
      into.copy_(half(static_cast<int>(rank), share, into.numel()));
    }
  };
  return submit(std::move(op), timeout, std::move(call));
}

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
  FlatCall call;
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

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& opts) {
  constexpr const char* kTitle = "weft:reduce";
  const at::Tensor& tensor = only(tensors, kTitle);
  check(tensors, kTitle);
  DeviceOp op = opOn(OpType::REDUCE, kTitle, tensor);
  op.root = static_cast<int>(opts.rootRank);
  return reduceWhole(std::move(op), opts.reduceOp, opts.timeout, tensor);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  check({tensors.begin(), tensors.end()}, "weft:all_reduce");
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, opts));
  }
  return batch(works);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& opts) {
  constexpr const char* kTitle = "weft:broadcast";
  const at::Tensor& tensor = only(tensors, kTitle);
  check(tensors, kTitle);
  const auto root = static_cast<std::size_t>(opts.rootRank);
  TORCH_CHECK(root < ranks(), kTitle, ": there is no rank ", opts.rootRank);
  DeviceOp op = opOn(OpType::BROADCAST, kTitle, tensor);
  op.root = static_cast<int>(root);
  FlatCall call;
  Tensors in, out(ranks());
  if (op.root == rank_)
    in.push_back(call.updates(tensor));
  else
    out[root] = call.writes(tensor);
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  const at::Tensor& input = only(inputs, kTitle);
  const Tensors& list = listOf(outputs, ranks(), kTitle);
  check(inputs, kTitle);
  check(list, kTitle);
  FlatCall call;
  Tensors in{call.reads(input)};
  Tensors out = call.writes(list);
  return exchange(opOn(OpType::ALLGATHER, kTitle, input), opts.timeout, std::move(call),
                  std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:_allgather_base";
  check({output, input}, kTitle);
  checkTimes(output, input, ranks(), kTitle);
  FlatCall call;
  Tensors in{call.reads(input)};
  Tensors out = equalParts(call.writes(output), ranks());
  out.resize(ranks(), out.back());  // chunk() gives one part of an empty tensor
  return exchange(opOn(OpType::_ALLGATHER_BASE, kTitle, input), opts.timeout, std::move(call),
                  std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  TORCH_CHECK(outputs.size() == ranks() && !inputs.empty(), kTitle, ": needs a list for each of ",
              ranks(), " ranks, got ", outputs.size());
  for (const Tensors& list : outputs)
    TORCH_CHECK(list.size() == inputs.size(), kTitle, ": needs ", inputs.size(),
                " output tensors for each rank, got ", list.size());
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    TensorLists of_one(1);
    for (const Tensors& list : outputs)
      of_one.front().push_back(list[at]);
    Tensors one{inputs[at]};
    works.push_back(allgather(of_one, one, opts));
  }
  return batch(works);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "weft:all_gather_into_tensor_coalesced: needs as ",
              "many inputs as outputs, got ", inputs.size(), " and ", outputs.size());
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at)
    works.push_back(_allgather_base(outputs[at], inputs[at], opts));
  return batch(works);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                         const c10d::GatherOptions& opts) {
  constexpr const char* kTitle = "weft:gather";
  const at::Tensor& input = only(inputs, kTitle);
  check(inputs, kTitle);
  DeviceOp op = opOn(OpType::GATHER, kTitle, input);
  op.root = static_cast<int>(opts.rootRank);
  FlatCall call;
  Tensors in{call.reads(input)};
  Tensors out(ranks());
  if (op.root == rank_) {
    const Tensors& list = listOf(outputs, ranks(), kTitle);
    check(list, kTitle);
    out = call.writes(list);
  }
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                          const c10d::ScatterOptions& opts) {
  constexpr const char* kTitle = "weft:scatter";
  const at::Tensor& output = only(outputs, kTitle);
  check(outputs, kTitle);
  const auto root = static_cast<std::size_t>(opts.rootRank);
  TORCH_CHECK(root < ranks(), kTitle, ": there is no rank ", opts.rootRank);
  DeviceOp op = opOn(OpType::SCATTER, kTitle, output);
  op.root = static_cast<int>(root);
  op.shares = size_;
  FlatCall call;
  Tensors in, out(ranks());
  if (op.root == rank_) {
    const Tensors& list = listOf(inputs, ranks(), kTitle);
    check(list, kTitle);
    in = call.reads(list);
  }
  out[root] = call.writes(output);
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:reduce_scatter";
  const at::Tensor& output = only(outputs, kTitle);
  const Tensors& list = listOf(inputs, ranks(), kTitle);
  check(outputs, kTitle);
  check(list, kTitle);
  FlatCall call;
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
  FlatCall call;
  Tensors in = equalParts(call.reads(input), ranks());
  in.resize(ranks(), in.back());
  const at::Tensor out = call.writes(output);
  return reduceShares(opOn(OpType::_REDUCE_SCATTER_BASE, kTitle, output), opts.reduceOp,
                      opts.timeout, std::move(call), std::move(in), out);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "weft:reduce_scatter_tensor_coalesced: needs as ",
              "many inputs as outputs, got ", inputs.size(), " and ", outputs.size());
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at)
    works.push_back(_reduce_scatter_base(outputs[at], inputs[at], opts));
  return batch(works);
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::alltoall_base(at::Tensor& output,
                                                                at::Tensor& input,
                                                                std::vector<int64_t>& output_splits,
                                                                std::vector<int64_t>& input_splits,
                                                                const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  check({output, input}, kTitle);
  DeviceOp op = opOn(OpType::ALLTOALL_BASE, kTitle, input);
  op.shares = size_;
  FlatCall call;
  Tensors in = parts(call.reads(input), rowsOf(input), input_splits, ranks(), kTitle);
  Tensors out = parts(call.writes(output), rowsOf(output), output_splits, ranks(), kTitle);
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  TORCH_CHECK(inputs.size() == ranks() && outputs.size() == ranks(), kTitle,
              ": needs one input and one output for each of the ", ranks(), " ranks, got ",
              inputs.size(), " and ", outputs.size());
  check(inputs, kTitle);
  check(outputs, kTitle);
  DeviceOp op = opOn(OpType::ALLTOALL, kTitle, inputs.front());
  op.shares = size_;
  FlatCall call;
  Tensors in = call.reads(inputs);
  Tensors out = call.writes(outputs);
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::barrier(const c10d::BarrierOptions& opts) {
  DeviceOp op;
  op.type = OpType::BARRIER;
  op.title = "weft:barrier";
  op.gives.assign(ranks(), 0);
  op.wants.assign(ranks(), kAnySize);
  return submit(std::move(op), opts.timeout, {});
}

}  // namespace weft::process_group
