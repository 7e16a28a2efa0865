#include "c10d_plugin/net/gloo/gloo_collectives.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "c10d_plugin/core/adjacent_parts.h"
#include "c10d_plugin/core/reduce_kernels.h"

namespace weft::collectives {
namespace {

// Gloo's options take an element's size from a type.
struct alignas(16) SixteenBytes {
  std::array<std::byte, 16> bytes;
};

template <typename Use>
void withType(std::size_t element, const Use& use) {
  switch (element) {
    case 2:
      return use(std::uint16_t());
    case 4:
      return use(std::uint32_t());
    case 8:
      return use(std::uint64_t());
    case 16:
      return use(SixteenBytes());
    default:
      return use(std::uint8_t());
  }
}

auto additionOf(const Call& call) {
  return [element = call.element, reduction = partialReduction(call.reduction)](
             void* out, const void* a, const void* b, std::size_t count) {
    const std::array inputs{static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
    reduceInto(element, reduction, static_cast<std::byte*>(out), inputs, count);
  };
}

template <typename Span>
std::size_t totalOf(std::span<const Span> parts) {
  std::size_t bytes = 0;
  for (const Span& part : parts)
    bytes += part.size();
  return bytes;
}

template <typename Int, typename Span>
std::vector<Int> sizesOf(std::span<const Span> parts) {
  std::vector<Int> sizes;
  for (const Span& part : parts)
    sizes.push_back(static_cast<Int>(part.size()));
  return sizes;
}

// Gloo's inputs are not const, but it does not write them.
std::uint8_t* raw(ConstBytes data) {
  return reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(data.data()));
}

// Few ranks with little data: sending to all at once takes one or two steps where Gloo's rings take
// 2 (n-1). With more ranks each would send to too many, with more data both are as good.
constexpr std::size_t kLittleData = std::size_t{4} << 20;

}  // namespace

GlooCollectives::GlooCollectives(std::shared_ptr<Mailbox> mailbox, const std::vector<int>& members,
                                 unsigned channel)
    : messages_(std::move(mailbox), members, channel),
      context_(std::make_shared<MailboxContext>(messages_.rank(), messages_.size(), current_)) {}

Error GlooCollectives::runRequests(const OpFingerprint& what, const Call& call,
                                   const std::function<void()>& run) {
  RequestSet requests(messages_.mailbox(), messages_.members(), messages_.base(call), what,
                      call.deadline, messages_.spin());
  current_.requests = &requests;
  std::string problem;
  try {
    run();
  } catch (const RequestsFailed&) {
    // finish() says why.
  } catch (const std::exception& thrown) {
    problem = thrown.what();
  }
  current_.requests = nullptr;
  if (Error error = requests.finish()) return error;
  if (problem.empty()) return Error::ok();
  Error error(ErrorCode::kInvalidArgument, what.describe() + " was refused by Gloo: " + problem);
  abort(error);
  return error;
}

bool GlooCollectives::oneStepIsBetter(std::size_t bytes) const {
  return size() <= MessageCollectives::kFewRanks && bytes <= kLittleData;
}

Error GlooCollectives::barrier(const Call& call) {
  return runRequests(OpFingerprint::of(Operation::kBarrier, call, 0), call, [&] {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  });
}

Error GlooCollectives::broadcast(const Call& call, Bytes data, int root) {
  // A tree either way; messages go through it in pieces.
  if (data.empty() || size() <= MessageCollectives::kFewRanks)
    return messages_.broadcast(call, data, root);
  return runRequests(OpFingerprint::of(Operation::kBroadcast, call, data.size(), root), call, [&] {
    gloo::BroadcastOptions options(context_);
    options.setOutput(raw(data), data.size());
    options.setRoot(root);
    gloo::broadcast(options);
  });
}

Error GlooCollectives::allReduce(const Call& call, Bytes data) {
  if (data.empty() || !canReduce(call.element, call.reduction) || oneStepIsBetter(data.size()))
    return messages_.allReduce(call, data);
  const std::size_t element = sizeOf(call.element);
  Error error = runRequests(OpFingerprint::of(Operation::kAllReduce, call, data.size()), call, [&] {
    gloo::AllreduceOptions options(context_);
    withType(element, [&](auto type) {
      using Type = decltype(type);
      std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> out;
      out.push_back(context_->createUnboundBuffer(data.data(), data.size()));
      options.setOutputs<Type>(std::move(out));
    });
    options.setReduceFunction(additionOf(call));
    gloo::allreduce(options);
  });
  if (!error) finishReduction(call, data, size());
  return error;
}

Error GlooCollectives::reduce(const Call& call, Bytes data, int root) {
  if (data.empty() || !canReduce(call.element, call.reduction))
    return messages_.reduce(call, data, root);
  // Gloo writes its output on every rank, but only the root's data may change.
  const auto work = std::make_unique_for_overwrite<std::byte[]>(data.size());
  Error error =
      runRequests(OpFingerprint::of(Operation::kReduce, call, data.size(), root), call, [&] {
        gloo::ReduceOptions options(context_);
        withType(sizeOf(call.element), [&](auto type) {
          using Type = decltype(type);
          options.setInput<Type>(context_->createUnboundBuffer(data.data(), data.size()));
          options.setOutput<Type>(context_->createUnboundBuffer(work.get(), data.size()));
        });
        options.setReduceFunction(additionOf(call));
        options.setRoot(root);
        gloo::reduce(options);
      });
  if (error || rank() != root) return error;
  std::memcpy(data.data(), work.get(), data.size());
  finishReduction(call, data, size());
  return error;
}

Error GlooCollectives::allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) {
  // All ranks know all sizes, and so decide alike.
  const std::size_t total = totalOf(out);
  if (static_cast<int>(out.size()) != size() || total == 0)
    return messages_.allGather(call, in, out);
  const AdjacentParts<Bytes> all(out, AdjacentParts<Bytes>::Use::kWrite);
  Error error = runRequests(OpFingerprint::of(Operation::kAllGather, call, total), call, [&] {
    gloo::AllgathervOptions options(context_);
    options.setInput(raw(in), in.size());
    options.setOutput(raw(all.all()), sizesOf<std::size_t>(out));
    gloo::allgatherv(options);
  });
  if (!error) all.copyBack(out);
  return error;
}

Error GlooCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                              int root) {
  return messages_.gather(call, in, out, root);
}

Error GlooCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                               int root) {
  return messages_.scatter(call, in, out, root);
}

Error GlooCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) {
  return messages_.reduceScatter(call, in, out);
}

Error GlooCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                std::span<const Bytes> out) {
  if (static_cast<int>(in.size()) != size() || static_cast<int>(out.size()) != size())
    return messages_.allToAll(call, in, out);
  const AdjacentParts<ConstBytes> from(in, AdjacentParts<ConstBytes>::Use::kRead);
  const AdjacentParts<Bytes> to(out, AdjacentParts<Bytes>::Use::kWrite);
  Error error =
      runRequests(OpFingerprint::of(Operation::kAllToAll, call, OpFingerprint::kVaries), call, [&] {
        gloo::AlltoallvOptions options(context_);
        options.setInput(raw(from.all()), sizesOf<std::int64_t>(in));
        options.setOutput(raw(to.all()), sizesOf<std::int64_t>(out));
        gloo::alltoallv(options);
      });
  if (!error) to.copyBack(out);
  return error;
}

}  // namespace weft::collectives
