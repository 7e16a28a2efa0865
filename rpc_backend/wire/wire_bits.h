// The bits of a message header, which WireWriter sets and WireReader reads.
#pragma once

#include <cstdint>

namespace weft::rpc::wire_bits {

// In the flags of a tensor.
inline constexpr std::uint8_t kRequiresGrad = 1;
inline constexpr std::uint8_t kInline = 2;
inline constexpr std::uint8_t kContiguous = 4;
inline constexpr std::uint8_t kGapped = 8;
inline constexpr std::uint8_t kCoalesced = 16;
inline constexpr std::uint8_t kKnown = kRequiresGrad | kInline | kContiguous | kGapped | kCoalesced;

// Added to the kind of the message.
inline constexpr std::uint8_t kDeviceMemory = 128;
inline constexpr std::uint8_t kStaged = 64;

}  // namespace weft::rpc::wire_bits
