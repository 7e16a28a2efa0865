#include "c10d_plugin/net/messages/op_fingerprint.h"

namespace weft::collectives {

namespace {

// No signature is the empty label.
constexpr std::uint64_t kIsSignature = std::uint64_t{1} << 24U;

}  // namespace

Label OpFingerprint::label() const {
  const auto what =
      kIsSignature | static_cast<std::uint64_t>(operation) |
      (static_cast<std::uint64_t>(element) << 8U) |
      (static_cast<std::uint64_t>(reduces(operation) ? reduction : Reduction()) << 16U) |
      (static_cast<std::uint64_t>(root) << 32U);
  return {{what, sequence, bytes}};
}

OpFingerprint OpFingerprint::of(const Label& label) {
  const std::uint64_t what = label.words[0];
  return {static_cast<Operation>(what & 0xFF),
          static_cast<Element>((what >> 8U) & 0xFF),
          static_cast<Reduction>((what >> 16U) & 0xFF),
          static_cast<int>(what >> 32U),
          label.words[1],
          label.words[2]};
}

std::string OpFingerprint::describe() const {
  std::string text = toString(operation);
  if (operation == Operation::kBroadcast || reduces(operation))
    text += " of " + std::to_string(bytes) + " bytes";
  if (element != Element::kBytes) text += std::string(" of ") + toString(element);
  if (reduces(operation)) text += std::string(" by ") + toString(reduction);
  if (hasRoot(operation)) text += ", root " + std::to_string(root);
  return text + " (operation " + std::to_string(sequence) + ")";
}

}  // namespace weft::collectives
