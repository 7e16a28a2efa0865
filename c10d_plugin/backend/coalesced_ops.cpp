// WeftBackend's operations on several tensors at once. Small tensors of one type travel together,
// as one operation on a copy; large ones travel as they are.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <map>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/backend/submit.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/element_of.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "c10d_plugin/tensors/overlap.h"
#include "c10d_plugin/tensors/premultiplied.h"

namespace weft::process_group {

using c10d::OpType;
using collectives::Bytes;
using collectives::ConstBytes;

namespace {

constexpr std::size_t kSmallTensor = 64 * 1024;  // bytes; a copy costs less than an operation
constexpr std::size_t kLargestPack = 1024 * 1024;

// Which tensors travel together, by index. All ranks decide alike, because all see the same types
// and sizes.
std::vector<std::vector<std::size_t>> plan(const Tensors& tensors) {
  struct Open {
    std::size_t pack;
    std::size_t bytes;
  };
  std::vector<std::vector<std::size_t>> packs;
  std::map<c10::ScalarType, Open> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t bytes = tensors[i].nbytes();
    const auto type = tensors[i].scalar_type();
    const auto found = open.find(type);
    if (bytes > kSmallTensor) {
      packs.push_back({i});
    } else if (found != open.end() && found->second.bytes + bytes <= kLargestPack) {
      packs[found->second.pack].push_back(i);
      found->second.bytes += bytes;
    } else {
      open[type] = {packs.size(), bytes};
      packs.push_back({i});
    }
  }
  return packs;
}

Tensors pick(const Tensors& from, const std::vector<std::size_t>& places) {
  Tensors picked;
  for (const std::size_t place : places)
    picked.push_back(from[place]);
  return picked;
}

// Rows of one matrix, one per rank, that hold a share of every tensor side by side.
struct Rows {
  Rows(const Tensors& shares, std::int64_t size, std::int64_t scale) {
    std::int64_t width = 0;
    for (const at::Tensor& share : shares) {
      offsets.push_back(width);
      widths.push_back(share.numel() / scale);
      width += widths.back();
    }
    matrix = at::empty({size, width}, shares.front().options().requires_grad(false));
  }
  at::Tensor of(std::size_t tensor) const {
    return matrix.narrow(1, offsets[tensor], widths[tensor]);
  }
  // Each row's memory.
  template <typename Span>
  std::vector<Span> spans() const {
    auto* data = static_cast<std::byte*>(matrix.data_ptr());
    const std::size_t each = matrix.nbytes() / static_cast<std::size_t>(matrix.size(0));
    std::vector<Span> rows;
    for (std::int64_t row = 0; row < matrix.size(0); ++row)
      rows.emplace_back(data + static_cast<std::size_t>(row) * each, each);
    return rows;
  }
  std::vector<std::int64_t> offsets, widths;
  at::Tensor matrix;
};

void allReducePack(OpContext& context, const Tensors& tensors, collectives::Reduction reduction,
                   const at::Tensor& factor) {
  const auto element = elementOf(tensors.front().scalar_type());
  if (tensors.size() == 1) {
    const ContiguousTensor flat =
        premultiplied(tensors.front(), factor, ContiguousTensor::Use::kReadWrite);
    context.check(context->allReduce(context.call(element, reduction), flat.bytes()));
    flat.writeBack();
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Rows pack(tensors, 1, 1);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    pack.of(i).copy_(tensors[i].reshape({1, -1}));
  const ContiguousTensor flat =
      premultiplied(pack.matrix, factor, ContiguousTensor::Use::kReadWrite);
  context.check(context->allReduce(context.call(element, reduction), flat.bytes()));
  flat.writeBack();
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i].copy_(pack.of(i).reshape(tensors[i].sizes()));
}

void allGatherPack(OpContext& context, const Tensors& outputs, const Tensors& inputs) {
  const auto size = static_cast<std::int64_t>(context->size());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Rows in(inputs, 1, 1);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    in.of(i).copy_(inputs[i].reshape({1, -1}));
  const Rows out(inputs, size, 1);
  context.check(context->allGather(context.call(elementOf(inputs.front().scalar_type())),
                                   in.spans<ConstBytes>().front(), out.spans<Bytes>()));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    outputs[i].copy_(out.of(i).reshape(outputs[i].sizes()));
}

void reduceScatterPack(OpContext& context, const Tensors& outputs, const Tensors& inputs,
                       collectives::Reduction reduction, const at::Tensor& factor) {
  const auto size = static_cast<std::int64_t>(context->size());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Rows in(inputs, size, size);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    in.of(i).copy_(inputs[i].reshape({size, -1}));
  const Rows out(outputs, 1, 1);
  const at::Tensor filled = in.matrix;
  in.matrix = premultiplied(filled, factor, ContiguousTensor::Use::kRead).memory();
  context.check(
      context->reduceScatter(context.call(elementOf(outputs.front().scalar_type()), reduction),
                             in.spans<ConstBytes>(), out.spans<Bytes>().front()));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    outputs[i].copy_(out.of(i).reshape(outputs[i].sizes()));
}

// The packs are written one after the other, so an input that overlaps an output is copied.
Tensors inputsApart(const Tensors& inputs, const Tensors& outputs) {
  const Occupied written = occupied(outputs);
  Tensors kept;
  for (const at::Tensor& input : inputs)
    kept.push_back(written.overlaps(bytesOf(input)) ? copyOf(input) : input);
  return kept;
}

void checkPairs(const Tensors& larger, const Tensors& smaller, int size, const char* title) {
  TORCH_CHECK(larger.size() == smaller.size() && !larger.empty(), title,
              ": needs as many inputs as outputs, at least one; got ", smaller.size(), " and ",
              larger.size());
  for (std::size_t i = 0; i < larger.size(); ++i)
    checkBase(larger[i], smaller[i], size, title);
}

}  // namespace

WeftBackend::WorkPtr WeftBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  constexpr const char* kTitle = "weft:all_reduce";
  if (auto* other = elsewhere(tensors)) return other->allreduce_coalesced(tensors, opts);
  TORCH_CHECK(!tensors.empty(), kTitle, ": needs at least one tensor");
  for (const at::Tensor& tensor : tensors) {
    checkDense(tensor, kTitle);
    (void)reductionOf(opts.reduceOp, tensor.scalar_type(), kTitle);
  }
  const auto reduction = reductionOf(opts.reduceOp, tensors.front().scalar_type(), kTitle);
  return submit(OpType::ALLREDUCE_COALESCED, kTitle, opts, tensors, tensors,
                [tensors, reduction, factor = factorOf(opts.reduceOp)](OpContext& context) {
                  // Tensors that share memory are all reduced from what they hold now.
                  const bool disjoint = occupied(tensors).disjoint();
                  Tensors reduced;
                  for (const at::Tensor& tensor : tensors)
                    reduced.push_back(disjoint ? tensor : copyOf(tensor));
                  for (const auto& places : plan(reduced))
                    allReducePack(context, pick(reduced, places), reduction, factor);
                  for (std::size_t i = 0; i < tensors.size() && !disjoint; ++i)
                    copyInto(tensors[i], reduced[i]);
                });
}

WeftBackend::WorkPtr WeftBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather_into_tensor_coalesced";
  if (auto* other = elsewhere(inputs)) {
    return other->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  checkPairs(outputs, inputs, size_, kTitle);
  return submit(OpType::COALESCED, kTitle, opts, inputs, outputs,
                [inputs, outputs](OpContext& context) {
                  const Tensors read = inputsApart(inputs, outputs);
                  for (const auto& places : plan(read))
                    allGatherPack(context, pick(outputs, places), pick(read, places));
                });
}

WeftBackend::WorkPtr WeftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  if (auto* other = elsewhere(inputs)) return other->allgather_coalesced(outputs, inputs, opts);
  checkCount(outputs.size(), size_, "list of output", kTitle);
  TORCH_CHECK(!inputs.empty(), kTitle, ": needs at least one tensor");
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), kTitle, ": needs ", inputs.size(),
                " output tensors for each rank, got ", list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      checkAlike(inputs[i], {list[i]}, kTitle);
      checkOwnShare(inputs[i], list[i], rank_, kTitle);
    }
  }
  return submit(
      OpType::ALLGATHER_COALESCED, kTitle, opts, inputs, outputs,
      [inputs, outputs](OpContext& context) {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        for (const auto& places : plan(inputs)) {
          const Tensors in = pick(inputs, places);
          Tensors gathered;
          for (const at::Tensor& tensor : in)
            gathered.push_back(at::empty({context->size(), tensor.numel()}, tensor.options()));
          allGatherPack(context, gathered, in);
          for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
            for (std::size_t i = 0; i < places.size(); ++i) {
              const at::Tensor& place = outputs[rank][places[i]];
              place.copy_(gathered[i][static_cast<std::int64_t>(rank)].reshape(place.sizes()));
            }
          }
        }
      });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:reduce_scatter_tensor_coalesced";
  if (auto* other = elsewhere(inputs)) {
    return other->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  checkPairs(inputs, outputs, size_, kTitle);
  for (const at::Tensor& tensor : outputs)
    (void)reductionOf(opts.reduceOp, tensor.scalar_type(), kTitle);
  const auto reduction = reductionOf(opts.reduceOp, outputs.front().scalar_type(), kTitle);
  return submit(OpType::COALESCED, kTitle, opts, inputs, outputs,
                [inputs, outputs, reduction, factor = factorOf(opts.reduceOp)](OpContext& context) {
                  const Tensors read = inputsApart(inputs, outputs);
                  for (const auto& places : plan(outputs))
                    reduceScatterPack(context, pick(outputs, places), pick(read, places), reduction,
                                      factor);
                });
}

}  // namespace weft::process_group
