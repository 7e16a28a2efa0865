// SharedDeviceBackend's operations that only move data: what each rank puts into its staging buffer
// in a round, and what it takes out of the others'.
#include "c10d_plugin/cuda/shared_device_backend.h"
#include "c10d_plugin/cuda/shares.h"
#include "c10d_plugin/engine/coalesced_work.h"
#include "c10d_plugin/tensors/op_checks.h"

namespace weft::process_group {

using c10d::OpType;
using std::chrono::milliseconds;

namespace {

// The parts of `flat`, which has the elements of `tensor`, that all_to_all_single's split sizes
// (rows of dimension 0) name; none: equal parts.
std::vector<at::Tensor> parts(const at::Tensor& flat, const at::Tensor& tensor,
                              const std::vector<std::int64_t>& splits, std::size_t ranks) {
  if (splits.empty()) return equalParts(flat, ranks);
  const std::int64_t rows = tensor.size(0);
  const std::int64_t row = rows == 0 ? 0 : flat.numel() / rows;
  std::vector<at::Tensor> made;
  std::int64_t at = 0;
  for (const std::int64_t size : splits) {
    made.push_back(flat.narrow(0, at, size * row));
    at += size * row;
  }
  return made;
}

}  // namespace

SharedDeviceBackend::WorkPtr SharedDeviceBackend::exchange(DeviceOp op, milliseconds timeout,
                                                           FlatCall call, Tensors in, Tensors out) {
  const bool apart = op.shares > 1;  // each rank gets another part
  in = call.apart(std::move(in), out, rank_);
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

SharedDeviceBackend::WorkPtr SharedDeviceBackend::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& opts) {
  constexpr const char* kTitle = "weft:broadcast";
  const at::Tensor& tensor = only(tensors, kTitle);
  check(tensors, kTitle);
  const auto root = static_cast<std::size_t>(checkRoot(opts.rootRank, size_, kTitle));
  DeviceOp op = opOn(OpType::BROADCAST, kTitle, tensor);
  op.root = static_cast<int>(root);
  FlatCall call(kTitle);
  Tensors in, out(ranks());
  if (op.root == rank_) {
    in.push_back(call.reads(tensor));
    call.returns(tensor);
  } else {
    out[root] = call.writes(tensor);
  }
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  const at::Tensor& input = only(inputs, kTitle);
  const Tensors& list = onePerRank(outputs, size_, kTitle);
  check(inputs, kTitle);
  check(list, kTitle);
  FlatCall call(kTitle);
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
  FlatCall call(kTitle);
  Tensors in{call.reads(input)};
  Tensors out = equalParts(call.writes(output), ranks());
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
  for (const Tensors& list : outputs)
    checkWritable(list, kTitle);  // before the first of them begins
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    TensorLists of_one(1);
    for (const Tensors& list : outputs)
      of_one.front().push_back(list[at]);
    Tensors one{inputs[at]};
    works.push_back(allgather(of_one, one, opts));
  }
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "weft:all_gather_into_tensor_coalesced: needs as ",
              "many inputs as outputs, got ", inputs.size(), " and ", outputs.size());
  checkWritable(outputs, "weft:all_gather_into_tensor_coalesced");
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < inputs.size(); ++at)
    works.push_back(_allgather_base(outputs[at], inputs[at], opts));
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                         const c10d::GatherOptions& opts) {
  constexpr const char* kTitle = "weft:gather";
  const at::Tensor& input = only(inputs, kTitle);
  check(inputs, kTitle);
  DeviceOp op = opOn(OpType::GATHER, kTitle, input);
  op.root = checkRoot(opts.rootRank, size_, kTitle);
  FlatCall call(kTitle);
  Tensors in{call.reads(input)};
  Tensors out(ranks());
  if (op.root == rank_) {
    const Tensors& list = onePerRank(outputs, size_, kTitle);
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
  const auto root = static_cast<std::size_t>(checkRoot(opts.rootRank, size_, kTitle));
  DeviceOp op = opOn(OpType::SCATTER, kTitle, output);
  op.root = static_cast<int>(root);
  op.shares = size_;
  FlatCall call(kTitle);
  Tensors in, out(ranks());
  if (op.root == rank_) {
    const Tensors& list = onePerRank(inputs, size_, kTitle);
    check(list, kTitle);
    in = call.reads(list);
  }
  out[root] = call.writes(output);
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::alltoall_base(at::Tensor& output,
                                                                at::Tensor& input,
                                                                std::vector<int64_t>& output_splits,
                                                                std::vector<int64_t>& input_splits,
                                                                const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  check({output, input}, kTitle);
  checkSplits(input, input_splits, size_, kTitle);
  checkSplits(output, output_splits, size_, kTitle);
  DeviceOp op = opOn(OpType::ALLTOALL_BASE, kTitle, input);
  op.shares = size_;
  FlatCall call(kTitle);
  Tensors in = parts(call.reads(input), input, input_splits, ranks());
  Tensors out = parts(call.writes(output), output, output_splits, ranks());
  return exchange(std::move(op), opts.timeout, std::move(call), std::move(in), std::move(out));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  checkCount(inputs.size(), size_, "input", kTitle);
  checkCount(outputs.size(), size_, "output", kTitle);
  check(inputs, kTitle);
  check(outputs, kTitle);
  DeviceOp op = opOn(OpType::ALLTOALL, kTitle, inputs.front());
  op.shares = size_;
  FlatCall call(kTitle);
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
  const FlatCall call(op.title);
  return submit(std::move(op), opts.timeout, call);
}

}  // namespace weft::process_group
