// WeftBackend's collectives: each checks its tensors and gives the engine their memory.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/backend/sparse_all_reduce.h"
#include "c10d_plugin/backend/submit.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "c10d_plugin/tensors/overlap.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

using c10d::OpType;
using collectives::Bytes;
using collectives::ConstBytes;

namespace {

// The inputs of an operation, one per rank, none of which overlaps its outputs; but this rank's own
// may be exactly `place`.
std::vector<ContiguousTensor> flattenInputs(const std::vector<at::Tensor>& tensors,
                                            const TensorReduction& how, const Occupied& outputs,
                                            int own, ByteRange place) {
  std::vector<ContiguousTensor> flats;
  flats.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    flats.push_back(apart(how.memoryOf(tensors[i], ContiguousTensor::Use::kRead), outputs,
                          i == static_cast<std::size_t>(own) ? place : ByteRange()));
  }
  return flats;
}

template <typename Span>
std::vector<Span> spansOf(const std::vector<ContiguousTensor>& flats) {
  std::vector<Span> spans;
  spans.reserve(flats.size());
  for (const ContiguousTensor& flat : flats)
    spans.emplace_back(flat.bytes());
  return spans;
}

void writeBack(const std::vector<ContiguousTensor>& flats) {
  for (const ContiguousTensor& flat : flats)
    flat.writeBack();
}

// `count` equal parts of one contiguous tensor's memory.
template <typename Span>
std::vector<Span> parts(std::span<std::byte> whole, std::size_t count) {
  std::vector<Span> spans;
  spans.reserve(count);
  const std::size_t each = whole.size() / count;
  for (std::size_t i = 0; i < count; ++i)
    spans.emplace_back(whole.subspan(i * each, each));
  return spans;
}

// The parts that all_to_all_single's split sizes (rows of dimension 0) name; none: equal parts.
template <typename Span>
std::vector<Span> splits(const ContiguousTensor& flat, const std::vector<int64_t>& rows,
                         std::size_t size) {
  if (rows.empty()) return parts<Span>(flat.bytes(), size);
  const std::size_t all_rows = static_cast<std::size_t>(flat.memory().size(0));
  const std::size_t row = all_rows == 0 ? 0 : flat.bytes().size() / all_rows;
  std::vector<Span> spans;
  spans.reserve(size);
  std::size_t at = 0;
  for (const int64_t count : rows) {
    const std::size_t bytes = static_cast<std::size_t>(count) * row;
    spans.emplace_back(flat.bytes().subspan(at, bytes));
    at += bytes;
  }
  return spans;
}

}  // namespace

void gatherParts(OpContext& context, const at::Tensor& output, const at::Tensor& input) {
  collectives::Collectives& group = context.collectives();
  const ContiguousTensor out(output, ContiguousTensor::Use::kWrite);
  const auto places = parts<Bytes>(out.bytes(), static_cast<std::size_t>(group.size()));
  const ContiguousTensor in = apart(ContiguousTensor(input, ContiguousTensor::Use::kRead),
                                    occupied(out), places[static_cast<std::size_t>(group.rank())]);
  context.check(group.allGather(nextCallOn(context, input), in.bytes(), places));
  out.writeBack();
}

void reduceParts(OpContext& context, const at::Tensor& output, const at::Tensor& input,
                 const TensorReduction& how) {
  collectives::Collectives& group = context.collectives();
  const ContiguousTensor out(output, ContiguousTensor::Use::kWrite);
  ContiguousTensor in = how.memoryOf(input, ContiguousTensor::Use::kRead);
  const auto size = static_cast<std::size_t>(group.size());
  const auto own = static_cast<std::size_t>(group.rank());
  if (!same(parts<ConstBytes>(in.bytes(), size)[own], out.bytes()))
    in = apart(std::move(in), occupied(out));
  context.check(group.reduceScatter(nextCallOn(context, output, how),
                                    parts<ConstBytes>(in.bytes(), size), out.bytes()));
  out.writeBack();
}

WeftBackend::WorkPtr WeftBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  constexpr const char* kTitle = "weft:broadcast";
  if (auto* other = delegateFor(tensors)) return other->broadcast(tensors, opts);
  const at::Tensor& tensor = only(tensors, kTitle);
  const int root = checkRoot(opts.rootRank, size_, kTitle);
  checkDense(tensor, kTitle);
  if (root != rank_) checkWritable(tensor, kTitle);
  return submit(OpType::BROADCAST, kTitle, opts, tensors, tensors,
                [tensor, root, here = rank_](OpContext& context) {
                  const ContiguousTensor flat(tensor, root == here ? ContiguousTensor::Use::kRead
                                                                   : ContiguousTensor::Use::kWrite);
                  context.check(context.collectives().broadcast(nextCallOn(context, tensor),
                                                                flat.bytes(), root));
                  flat.writeBack();
                });
}

WeftBackend::WorkPtr WeftBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  constexpr const char* kTitle = "weft:all_reduce";
  if (auto* other = delegateFor(tensors)) return other->allreduce(tensors, opts);
  const at::Tensor& tensor = only(tensors, kTitle);
  if (tensor.layout() == c10::kSparse) return allreduce_sparse(tensors, opts);
  checkDense(tensor, kTitle);
  checkWritable(tensor, kTitle);
  const TensorReduction how = reductionOf(opts.reduceOp, tensor.scalar_type(), kTitle);
  return submit(
      OpType::ALLREDUCE, kTitle, opts, tensors, tensors, [tensor, how](OpContext& context) {
        const ContiguousTensor flat = how.memoryOf(tensor, ContiguousTensor::Use::kReadWrite);
        context.check(
            context.collectives().allReduce(nextCallOn(context, tensor, how), flat.bytes()));
        flat.writeBack();
      });
}

WeftBackend::WorkPtr WeftBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  constexpr const char* kTitle = "weft:all_reduce";  // profiled under the name users know
  if (auto* other = delegateFor(tensors)) return other->allreduce_sparse(tensors, opts);
  const at::Tensor& tensor = only(tensors, kTitle);
  checkSparse(tensor, opts.reduceOp, kTitle);
  return submit(OpType::_ALLREDUCE_SPARSE, kTitle, opts, tensors, tensors,
                [tensor](OpContext& context) { sparseAllReduce(context, tensor, kTitle); });
}

WeftBackend::WorkPtr WeftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  constexpr const char* kTitle = "weft:reduce";
  if (auto* other = delegateFor(tensors)) return other->reduce(tensors, opts);
  const at::Tensor& tensor = only(tensors, kTitle);
  const int root = checkRoot(opts.rootRank, size_, kTitle);
  checkDense(tensor, kTitle);
  if (root == rank_) checkWritable(tensor, kTitle);
  const TensorReduction how = reductionOf(opts.reduceOp, tensor.scalar_type(), kTitle);
  return submit(OpType::REDUCE, kTitle, opts, tensors, tensors,
                [tensor, how, root, here = rank_](OpContext& context) {
                  const ContiguousTensor flat =
                      how.memoryOf(tensor, root == here ? ContiguousTensor::Use::kReadWrite
                                                        : ContiguousTensor::Use::kRead);
                  context.check(context.collectives().reduce(nextCallOn(context, tensor, how),
                                                             flat.bytes(), root));
                  flat.writeBack();
                });
}

WeftBackend::WorkPtr WeftBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  if (auto* other = delegateFor(inputs)) return other->allgather(outputs, inputs, opts);
  const at::Tensor& input = only(inputs, kTitle);
  const Tensors& output = onePerRank(outputs, size_, kTitle);
  checkAlike(input, output, kTitle);
  checkWritable(output, kTitle);
  checkOwnShare(input, output[static_cast<std::size_t>(rank_)], rank_, kTitle);
  return submit(OpType::ALLGATHER, kTitle, opts, inputs, outputs,
                [input, output](OpContext& context) {
                  const std::vector<ContiguousTensor> out = flattenOutputs(output);
                  const ContiguousTensor in =
                      apart(ContiguousTensor(input, ContiguousTensor::Use::kRead), occupied(out),
                            out[static_cast<std::size_t>(context.collectives().rank())].bytes());
                  context.check(context.collectives().allGather(nextCallOn(context, input),
                                                                in.bytes(), spansOf<Bytes>(out)));
                  writeBack(out);
                });
}

WeftBackend::WorkPtr WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:_all_gather_base";
  if (auto* other = delegateFor(input)) return other->_allgather_base(output, input, opts);
  checkBase(output, input, size_, kTitle);
  checkWritable(output, kTitle);
  return submit(OpType::_ALLGATHER_BASE, kTitle, opts, input, output,
                [input, output](OpContext& context) { gatherParts(context, output, input); });
}

WeftBackend::WorkPtr WeftBackend::gather(TensorLists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  constexpr const char* kTitle = "weft:gather";
  if (auto* other = delegateFor(inputs)) return other->gather(outputs, inputs, opts);
  const at::Tensor& input = only(inputs, kTitle);
  const int root = checkRoot(opts.rootRank, size_, kTitle);
  const Tensors output = onePerRankAtRoot(outputs, size_, root == rank_, kTitle);
  checkAlike(input, output, kTitle);
  checkWritable(output, kTitle);
  if (root == rank_) checkOwnShare(input, output[static_cast<std::size_t>(rank_)], rank_, kTitle);
  return submit(
      OpType::GATHER, kTitle, opts, inputs, outputs, [input, output, root](OpContext& context) {
        const std::vector<ContiguousTensor> out = flattenOutputs(output);
        const ContiguousTensor in =
            apart(ContiguousTensor(input, ContiguousTensor::Use::kRead), occupied(out),
                  out.empty() ? ByteRange() : out[static_cast<std::size_t>(root)].bytes());
        context.check(context.collectives().gather(nextCallOn(context, input), in.bytes(),
                                                   spansOf<Bytes>(out), root));
        writeBack(out);
      });
}

WeftBackend::WorkPtr WeftBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ScatterOptions& opts) {
  constexpr const char* kTitle = "weft:scatter";
  if (auto* other = delegateFor(outputs)) return other->scatter(outputs, inputs, opts);
  const at::Tensor& output = only(outputs, kTitle);
  const int root = checkRoot(opts.rootRank, size_, kTitle);
  const Tensors input = onePerRankAtRoot(inputs, size_, root == rank_, kTitle);
  checkAlike(output, input, kTitle);
  checkWritable(output, kTitle);
  if (root == rank_) checkOwnShare(output, input[static_cast<std::size_t>(rank_)], rank_, kTitle);
  return submit(OpType::SCATTER, kTitle, opts, root == rank_ ? input : outputs, outputs,
                [input, output, root](OpContext& context) {
                  const ContiguousTensor out(output, ContiguousTensor::Use::kWrite);
                  const std::vector<ContiguousTensor> in =
                      flattenInputs(input, {}, occupied(out), root, out.bytes());
                  context.check(context.collectives().scatter(
                      nextCallOn(context, output), spansOf<ConstBytes>(in), out.bytes(), root));
                  out.writeBack();
                });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:reduce_scatter";
  if (auto* other = delegateFor(outputs)) return other->reduce_scatter(outputs, inputs, opts);
  const at::Tensor& output = only(outputs, kTitle);
  const Tensors& input = onePerRank(inputs, size_, kTitle);
  checkAlike(output, input, kTitle);
  checkWritable(output, kTitle);
  checkOwnShare(output, input[static_cast<std::size_t>(rank_)], rank_, kTitle);
  const TensorReduction how = reductionOf(opts.reduceOp, output.scalar_type(), kTitle);
  return submit(OpType::REDUCE_SCATTER, kTitle, opts, input, outputs,
                [input, output, how](OpContext& context) {
                  const ContiguousTensor out(output, ContiguousTensor::Use::kWrite);
                  const std::vector<ContiguousTensor> in = flattenInputs(
                      input, how, occupied(out), context.collectives().rank(), out.bytes());
                  context.check(context.collectives().reduceScatter(
                      nextCallOn(context, output, how), spansOf<ConstBytes>(in), out.bytes()));
                  out.writeBack();
                });
}

WeftBackend::WorkPtr WeftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:_reduce_scatter_base";
  if (auto* other = delegateFor(input)) return other->_reduce_scatter_base(output, input, opts);
  checkBase(input, output, size_, kTitle);
  checkWritable(output, kTitle);
  const TensorReduction how = reductionOf(opts.reduceOp, output.scalar_type(), kTitle);
  return submit(
      OpType::_REDUCE_SCATTER_BASE, kTitle, opts, input, output,
      [input, output, how](OpContext& context) { reduceParts(context, output, input, how); });
}

WeftBackend::WorkPtr WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  if (auto* other = delegateFor(input)) {
    return other->alltoall_base(output, input, output_splits, input_splits, opts);
  }
  checkAlike(input, {output}, kTitle);
  checkWritable(output, kTitle);
  checkSplits(input, input_splits, size_, kTitle);
  checkSplits(output, output_splits, size_, kTitle);
  checkOwnSplits(output, output_splits, input, input_splits, rank_, size_, kTitle);
  return submit(OpType::ALLTOALL_BASE, kTitle, opts, input, output,
                [input, output, input_splits, output_splits,
                 size = static_cast<std::size_t>(size_)](OpContext& context) {
                  const ContiguousTensor out(output, ContiguousTensor::Use::kWrite);
                  const ContiguousTensor in =
                      apart(ContiguousTensor(input, ContiguousTensor::Use::kRead), occupied(out));
                  context.check(context.collectives().allToAll(
                      nextCallOn(context, input), splits<ConstBytes>(in, input_splits, size),
                      splits<Bytes>(out, output_splits, size)));
                  out.writeBack();
                });
}

WeftBackend::WorkPtr WeftBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  constexpr const char* kTitle = "weft:all_to_all";
  if (auto* other = delegateFor(inputs)) return other->alltoall(outputs, inputs, opts);
  checkCount(inputs.size(), size_, "input", kTitle);
  checkCount(outputs.size(), size_, "output", kTitle);
  checkAlike(inputs.front(), inputs, kTitle);
  checkAlike(inputs.front(), outputs, kTitle);
  checkWritable(outputs, kTitle);
  const auto own = static_cast<std::size_t>(rank_);
  checkOwnShare(inputs[own], outputs[own], rank_, kTitle);
  return submit(
      OpType::ALLTOALL, kTitle, opts, inputs, outputs,
      [input = inputs, output = outputs, own](OpContext& context) {
        const std::vector<ContiguousTensor> out = flattenOutputs(output);
        const std::vector<ContiguousTensor> in =
            flattenInputs(input, {}, occupied(out), context.collectives().rank(), out[own].bytes());
        context.check(context.collectives().allToAll(nextCallOn(context, input.front()),
                                                     spansOf<ConstBytes>(in), spansOf<Bytes>(out)));
        writeBack(out);
      });
}

WeftBackend::WorkPtr WeftBackend::barrier(const c10d::BarrierOptions& opts) {
  constexpr const char* kTitle = "weft:barrier";
  // torch passes only the number of the call's device. Where there is no such device the number is
  // ignored, as Gloo does.
  const auto device = getBoundDeviceId() ? getBoundDeviceId()->type() : c10::DeviceType::CUDA;
  if (!opts.device_ids.empty() && (comm_->delegates().made(device) || at::hasCUDA())) {
    const auto index = static_cast<c10::DeviceIndex>(opts.device_ids.front());
    return comm_->delegates().of(c10::Device(device, index))->barrier(opts);
  }
  return comm_->engine().submit(
      {kTitle, timeoutOr(opts.timeout), opts.asyncOp, this},
      [&] {
        return OpInfo{OpType::BARRIER, kTitle, std::nullopt, {}};
      },
      [](OpContext& context) { context.check(context.collectives().barrier(context.nextCall())); });
}

}  // namespace weft::process_group
