#include "c10d_plugin/core/op_fingerprint.h"

#include <array>

#include "transport/base/peer_name.h"

namespace weft::collectives {
namespace {

// By Operation.
constexpr std::array kNames{
    "barrier", "broadcast", "all_reduce",     "reduce",     "all_gather",
    "gather",  "scatter",   "reduce_scatter", "all_to_all", "a call that was refused"};
static_assert(kNames.size() == static_cast<std::size_t>(Operation::kRefused) + 1);

// Set in every fingerprint, so that none equals the empty label.
constexpr std::uint64_t kIsFingerprint = std::uint64_t{1} << 24U;
// The variant's 7 bits are between it and the root.
constexpr unsigned kVariantShift = 25;

// The ranks' own parts may differ in size.
bool hasUnevenParts(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kGather ||
         operation == Operation::kScatter || operation == Operation::kReduceScatter ||
         operation == Operation::kAllToAll;
}

}  // namespace

const char* toString(Operation operation) noexcept {
  const auto index = static_cast<std::size_t>(operation);
  return index < kNames.size() ? kNames[index] : "an unknown operation";
}

bool reduces(Operation operation) noexcept {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

bool hasRoot(Operation operation) noexcept {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}

Label OpFingerprint::label() const {
  const auto what =
      kIsFingerprint | static_cast<std::uint64_t>(operation) |
      (static_cast<std::uint64_t>(element) << 8U) |
      (static_cast<std::uint64_t>(reduces(operation) ? reduction : Reduction()) << 16U) |
      (static_cast<std::uint64_t>(variant & 0x7FU) << kVariantShift) |
      (static_cast<std::uint64_t>(root_or_sizes) << 32U);
  return {{what, sequence, bytes}};
}

OpFingerprint OpFingerprint::of(const Label& label) {
  const std::uint64_t what = label.words[0];
  return {static_cast<Operation>(what & 0xFF),
          static_cast<Element>((what >> 8U) & 0xFF),
          static_cast<Reduction>((what >> 16U) & 0xFF),
          static_cast<std::uint8_t>((what >> kVariantShift) & 0x7F),
          static_cast<std::int32_t>(what >> 32U),
          label.words[1],
          label.words[2]};
}

std::string OpFingerprint::describe() const {
  std::string text = toString(operation);
  if (operation != Operation::kBarrier && operation != Operation::kRefused) {
    if (bytes != kVaries) text += " of " + transport::bytesText(bytes);
    if (element != Element::kBytes) text += std::string(" of ") + toString(element);
    if (element == Element::kBytes && variant != 0)
      text += " of type number " + std::to_string(variant);
    if (reduces(operation)) text += std::string(" by ") + toString(reduction);
    if (reduces(operation) && variant != 0) text += " of premultiplied values";
    if (hasRoot(operation)) text += ", root " + std::to_string(root_or_sizes);
  }
  constexpr std::uint64_t kNumber = (std::uint64_t{1} << kSequenceBits) - 1;
  return text + " (operation " + std::to_string(sequence & kNumber) + ")";
}

bool OpFingerprint::agreesWith(const OpFingerprint& other) const noexcept {
  if (operation != other.operation || sequence != other.sequence) return false;
  if (operation == Operation::kRefused) return false;
  if (operation == Operation::kBarrier) return true;
  if (element != other.element || variant != other.variant) return false;
  if (reduces(operation) && reduction != other.reduction) return false;
  if (root_or_sizes != other.root_or_sizes) return false;
  return hasUnevenParts(operation) || bytes == other.bytes;
}

std::string differentCalls(int their_rank, const Label& theirs, int own_rank, const Label& ours) {
  const std::string their_call = OpFingerprint::of(theirs).describe();
  const std::string own_call = OpFingerprint::of(ours).describe();
  std::string text = "the ranks called different operations: rank " + std::to_string(their_rank) +
                     " called " + their_call + ", rank " + std::to_string(own_rank) + " called " +
                     own_call;
  if (theirs == ours) return text + ", which takes no such message";
  return their_call == own_call ? text + ", with parts of other sizes" : text;
}

std::string whyNotReducible(const OpFingerprint& op, std::size_t bytes) {
  if (!canReduce(op.element, op.reduction)) {
    return std::string("elements of type ") + toString(op.element) + " cannot be reduced by " +
           toString(op.reduction);
  }
  if (bytes % sizeOf(op.element) == 0) return {};
  return std::to_string(bytes) + " bytes is not a whole number of elements";
}

}  // namespace weft::collectives
