// WeftBackend's operations on several tensors at once. Small tensors of one type travel together,
// as one operation on a copy; large ones travel as they are.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <map>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/backend/submit.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "c10d_plugin/tensors/overlap.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

using c10d::OpType;
using collectives::Bytes;
using collectives::ConstBytes;

namespace {

constexpr std::size_t kSmallTensor = 64 * 1024;  // bytes; a copy costs less than an operation

// Which tensors travel together, by index: the small ones of a type. All ranks decide alike,
// because all see the same types and sizes.
std::vector<std::vector<std::size_t>> plan(const Tensors& tensors) {
  std::vector<std::vector<std::size_t>> packs;
  std::map<c10::ScalarType, std::size_t> small;  // the pack of a type's small tensors
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].nbytes() <= kSmallTensor) {
      const auto [found, is_first] = small.emplace(tensors[i].scalar_type(), packs.size());
      if (!is_first) {
        packs[found->second].push_back(i);
        continue;
      }
    }
    packs.push_back({i});
  }
  return packs;
}

// Runs `run` for each pack. An exception that leaves some undone ends the group.
template <typename Run>
void forEachPack(OpContext& context, const Tensors& tensors, Run&& run) {
  context.beginSeries();
  for (const std::vector<std::size_t>& places : plan(tensors))
    run(places);
  context.endSeries();
}

Tensors pick(const Tensors& from, const std::vector<std::size_t>& places) {
  Tensors picked;
  for (const std::size_t place : places)
    picked.push_back(from[place]);
  return picked;
}

// Rows of one matrix, one per rank, that hold a share of every tensor side by side.
struct Rows {
  // A row has 1/`scale` of each tensor's elements.
  Rows(const Tensors& shares, std::int64_t size, std::int64_t scale) {
    std::int64_t width = 0;
    for (const at::Tensor& share : shares) {
      offsets.push_back(width);
      widths.push_back(share.numel() / scale);
      width += widths.back();
    }
    matrix = at::empty({size, width}, shares.front().options().requires_grad(false));
  }
  // Filled with the tensors, a part of each in every row.
  static Rows of(const Tensors& tensors, std::int64_t size) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Rows rows(tensors, size, size);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      checkMemory(tensors[i]);
      rows.share(i).copy_(tensors[i].reshape({size, -1}));
    }
    return rows;
  }
  void copyTo(const Tensors& tensors) const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      copyInto(tensors[i], share(i).reshape(tensors[i].sizes()));
  }
  at::Tensor share(std::size_t tensor) const {
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

// How each tensor is reduced: a factor depends on the type. Throws as reductionOf() does.
std::vector<TensorReduction> reductionsOf(const c10d::ReduceOp& op, const Tensors& tensors,
                                          const char* title) {
  std::vector<TensorReduction> reductions;
  reductions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    reductions.push_back(reductionOf(op, tensor.scalar_type(), title));
  return reductions;
}

// The same call for a pack: ranks whose packs hold other sizes find that they differ.
collectives::Call packed(collectives::Call call, const Tensors& tensors) {
  if (tensors.size() == 1) return call;
  collectives::SizesDigest sizes;
  for (const at::Tensor& tensor : tensors)
    sizes.add(tensor.nbytes());
  call.sizes_digest = sizes.value();
  return call;
}

void allReducePack(OpContext& context, const Tensors& tensors, const TensorReduction& how) {
  const auto reduce = [&](const at::Tensor& memory) {
    const ContiguousTensor flat = how.memoryOf(memory, ContiguousTensor::Use::kReadWrite);
    context.check(context.collectives().allReduce(packed(nextCallOn(context, memory, how), tensors),
                                                  flat.bytes()));
    flat.writeBack();
  };
  if (tensors.size() == 1) return reduce(tensors.front());
  const Rows pack = Rows::of(tensors, 1);
  reduce(pack.matrix);
  pack.copyTo(tensors);
}

Rows allGatherPack(OpContext& context, const Tensors& inputs) {
  const Rows in = Rows::of(inputs, 1);
  Rows out(inputs, context.collectives().size(), 1);
  context.check(context.collectives().allGather(packed(nextCallOn(context, inputs.front()), inputs),
                                                in.spans<ConstBytes>().front(),
                                                out.spans<Bytes>()));
  return out;
}

void reduceScatterPack(OpContext& context, const Tensors& outputs, const Tensors& inputs,
                       const TensorReduction& how) {
  Rows in = Rows::of(inputs, context.collectives().size());
  const Rows out(outputs, 1, 1);
  const at::Tensor filled = in.matrix;
  in.matrix = how.memoryOf(filled, ContiguousTensor::Use::kRead).memory();
  context.check(context.collectives().reduceScatter(
      packed(nextCallOn(context, outputs.front(), how), outputs), in.spans<ConstBytes>(),
      out.spans<Bytes>().front()));
  out.copyTo(outputs);
}

// What the packs write, of which none overlaps another: the outputs, or copies of all.
Tensors outputsApart(const Tensors& outputs) {
  if (occupied(outputs).disjoint()) return outputs;
  Tensors written;
  for (const at::Tensor& output : outputs)
    written.push_back(copyOf(output));
  return written;
}

// Copies outputsApart() to the outputs, in the order of the list, so the last one remains.
void copyBack(const Tensors& written, const Tensors& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!written[i].is_same(outputs[i])) copyInto(outputs[i], written[i]);
  }
}

// The packs are written one after the other, so an input that overlaps what they write is copied.
Tensors inputsApart(const Tensors& inputs, const Tensors& written) {
  const Occupied places = occupied(written);
  Tensors kept;
  for (const at::Tensor& input : inputs)
    kept.push_back(places.overlaps(bytesOf(input)) ? copyOf(input) : input);
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
  if (auto* other = delegateFor(tensors)) return other->allreduce_coalesced(tensors, opts);
  TORCH_CHECK(!tensors.empty(), kTitle, ": needs at least one tensor");
  for (const at::Tensor& tensor : tensors) {
    checkDense(tensor, kTitle);
    checkWritable(tensor, kTitle);
  }
  const std::vector<TensorReduction> hows = reductionsOf(opts.reduceOp, tensors, kTitle);
  return submit(OpType::ALLREDUCE_COALESCED, kTitle, opts, tensors, tensors,
                [tensors, hows](OpContext& context) {
                  // Tensors that share memory are all reduced from what they hold now.
                  const Tensors reduced = outputsApart(tensors);
                  forEachPack(context, reduced, [&](const auto& places) {
                    allReducePack(context, pick(reduced, places), hows[places.front()]);
                  });
                  copyBack(reduced, tensors);
                });
}

WeftBackend::WorkPtr WeftBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather_into_tensor_coalesced";
  if (auto* other = delegateFor(inputs)) {
    return other->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  checkPairs(outputs, inputs, size_, kTitle);
  checkWritable(outputs, kTitle);
  return submit(OpType::COALESCED, kTitle, opts, inputs, outputs,
                [inputs, outputs](OpContext& context) {
                  const Tensors written = outputsApart(outputs);
                  const Tensors read = inputsApart(inputs, written);
                  forEachPack(context, read, [&](const auto& places) {
                    if (const std::size_t first = places.front(); places.size() == 1)
                      return gatherParts(context, written[first], read[first]);
                    allGatherPack(context, pick(read, places)).copyTo(pick(written, places));
                  });
                  copyBack(written, outputs);
                });
}

WeftBackend::WorkPtr WeftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  constexpr const char* kTitle = "weft:all_gather";
  if (auto* other = delegateFor(inputs)) return other->allgather_coalesced(outputs, inputs, opts);
  checkCount(outputs.size(), size_, "list of output", kTitle);
  TORCH_CHECK(!inputs.empty(), kTitle, ": needs at least one tensor");
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), kTitle, ": needs ", inputs.size(),
                " output tensors for each rank, got ", list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      checkAlike(inputs[i], {list[i]}, kTitle);
      checkWritable(list[i], kTitle);
      checkOwnShare(inputs[i], list[i], rank_, kTitle);
    }
  }
  return submit(OpType::ALLGATHER_COALESCED, kTitle, opts, inputs, outputs,
                [inputs, outputs](OpContext& context) {
                  Tensors all;
                  for (const Tensors& list : outputs)
                    all.insert(all.end(), list.begin(), list.end());
                  const Tensors written = outputsApart(all);
                  const Tensors read = inputsApart(inputs, written);
                  forEachPack(context, read, [&](const auto& places) {
                    const Rows gathered = allGatherPack(context, pick(read, places));
                    for (std::size_t i = 0; i < places.size(); ++i) {
                      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
                        const at::Tensor& place = written[rank * inputs.size() + places[i]];
                        copyInto(place, gathered.share(i)[static_cast<std::int64_t>(rank)].reshape(
                                            place.sizes()));
                      }
                    }
                  });
                  copyBack(written, all);
                });
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kTitle = "weft:reduce_scatter_tensor_coalesced";
  if (auto* other = delegateFor(inputs)) {
    return other->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  checkPairs(inputs, outputs, size_, kTitle);
  checkWritable(outputs, kTitle);
  const std::vector<TensorReduction> hows = reductionsOf(opts.reduceOp, outputs, kTitle);
  return submit(OpType::COALESCED, kTitle, opts, inputs, outputs,
                [inputs, outputs, hows](OpContext& context) {
                  const Tensors written = outputsApart(outputs);
                  const Tensors read = inputsApart(inputs, written);
                  forEachPack(context, written, [&](const auto& places) {
                    if (const std::size_t first = places.front(); places.size() == 1)
                      return reduceParts(context, written[first], read[first], hows[first]);
                    reduceScatterPack(context, pick(written, places), pick(read, places),
                                      hows[places.front()]);
                  });
                  copyBack(written, outputs);
                });
}

}  // namespace weft::process_group
