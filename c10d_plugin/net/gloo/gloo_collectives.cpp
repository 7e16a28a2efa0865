#include "c10d_plugin/net/gloo/gloo_collectives.h"

#include <gloo/allreduce.h>

#include <array>
#include <utility>

#include "c10d_plugin/core/reduce_kernels.h"

namespace weft::collectives {
namespace {

// Few ranks with little data: sending to all at once takes one or two steps where Gloo's ring takes
// 2 (n-1). With more ranks each would send to too many, with more data both are as good.
constexpr int kAtOnceRanks = 8;
constexpr std::size_t kAtOnceBytes = std::size_t{4} << 20;

// Gloo's options take an element's size from a type.
struct alignas(16) SixteenBytes {
  std::array<std::byte, 16> bytes;
};

template <typename Type>
void setOutput(gloo::AllreduceOptions& options, gloo::Context& context, Bytes data) {
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> out;
  out.push_back(context.createUnboundBuffer(data.data(), data.size()));
  options.setOutputs<Type>(std::move(out));
}

void runAllReduce(const std::shared_ptr<gloo::Context>& context, const Call& call, Bytes data) {
  gloo::AllreduceOptions options(context);
  switch (sizeOf(call.element)) {
    case 2:
      setOutput<std::uint16_t>(options, *context, data);
      break;
    case 4:
      setOutput<std::uint32_t>(options, *context, data);
      break;
    case 8:
      setOutput<std::uint64_t>(options, *context, data);
      break;
    case 16:
      setOutput<SixteenBytes>(options, *context, data);
      break;
    default:
      setOutput<std::uint8_t>(options, *context, data);
  }
  options.setReduceFunction([element = call.element, reduction = partialReduction(call.reduction)](
                                void* out, const void* a, const void* b, std::size_t count) {
    const std::array inputs{static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
    reduceInto(element, reduction, static_cast<std::byte*>(out), inputs, count);
  });
  gloo::allreduce(options);
}

}  // namespace

GlooCollectives::GlooCollectives(std::shared_ptr<Mailbox> mailbox, const std::vector<int>& members,
                                 unsigned channel)
    : MessageCollectives(std::move(mailbox), members, channel),
      context_(std::make_shared<MailboxContext>(rank(), size(), current_)) {}

Error GlooCollectives::allReduce(const Call& call, Bytes data) {
  const OpFingerprint what = OpFingerprint::of(Operation::kAllReduce, call, data.size());
  // Gloo reduces pair by pair.
  const bool in_pairs = call.reduction != Reduction::kAverage || sumsFit(call.element);
  if (data.empty() || !whyNotReducible(what, data.size()).empty() || !in_pairs ||
      (size() <= kAtOnceRanks && data.size() <= kAtOnceBytes))
    return MessageCollectives::allReduce(call, data);
  RequestSet requests = begin(call, what);
  current_.requests = &requests;
  std::string problem;
  try {
    runAllReduce(context_, call, data);
  } catch (const RequestsFailed&) {
    // finish() says why.
  } catch (const std::exception& thrown) {
    problem = thrown.what();
  }
  current_.requests = nullptr;
  if (Error error = requests.finish()) return error;
  if (problem.empty()) {
    finishReduction(call, data, size());
    return Error::ok();
  }
  Error error(ErrorCode::kInvalidArgument, what.describe() + " was refused by Gloo: " + problem);
  abort(error);
  return error;
}

}  // namespace weft::collectives
