#include "transport/frame/frame.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "transport/arena/arena_layout.h"
#include "transport/base/bytes.h"

namespace weft::transport {
namespace {

Error overLimit(const char* what, std::uint64_t claimed, std::uint64_t limit) {
  return {ErrorCode::kLimitExceeded,
          resourceExhausted(std::string("a message claims ") + std::to_string(claimed) + " " +
                            what + ", the limit here is " + std::to_string(limit))};
}

}  // namespace

Error checkSize(const FrameHead& head, const Limits& limits) {
  // buffer_bytes has 64 bits and is anybody's claim: the sum could overflow.
  const std::uint64_t limit = limits.max_message_bytes;
  if (head.buffer_bytes <= limit && head.header_bytes <= limit - head.buffer_bytes) return {};
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - head.header_bytes;
  const Error over =
      overLimit("bytes", std::min(head.buffer_bytes, most) + head.header_bytes, limit);
  return {over.code(), over.text() + " (max_message_bytes); send less at once, or raise it there"};
}

void encodeFrameHead(const FrameHead& head, std::byte* out) noexcept {
  storeLittle<std::uint32_t>(out, FrameHead::kMagic);
  storeLittle<std::uint8_t>(out + 4, FrameHead::kVersion);
  storeLittle<std::uint8_t>(out + 5, static_cast<std::uint8_t>(head.kind));
  storeLittle<std::uint16_t>(out + 6, head.flags);
  storeLittle<std::uint64_t>(out + 8, head.sequence);
  storeLittle<std::uint64_t>(out + 16, head.ack);
  storeLittle<std::uint32_t>(out + 24, head.header_bytes);
  storeLittle<std::uint32_t>(out + 28, head.buffer_count);
  storeLittle<std::uint64_t>(out + 32, head.buffer_bytes);
}

Result<FrameHead> decodeFrameHead(std::span<const std::byte, FrameHead::kBytes> bytes,
                                  const Limits& limits) {
  const std::byte* in = bytes.data();
  if (loadLittle<std::uint32_t>(in) != FrameHead::kMagic) return protocolError("bad frame magic");
  if (const auto version = loadLittle<std::uint8_t>(in + 4); version != FrameHead::kVersion) {
    return protocolError("frame version " + std::to_string(version) + " instead of " +
                         std::to_string(FrameHead::kVersion));
  }
  FrameHead head;
  const auto kind = loadLittle<std::uint8_t>(in + 5);
  if (kind < static_cast<std::uint8_t>(FrameKind::kData) ||
      kind > static_cast<std::uint8_t>(FrameKind::kAck)) {
    return protocolError("unknown frame kind " + std::to_string(kind));
  }
  head.kind = static_cast<FrameKind>(kind);
  head.flags = loadLittle<std::uint16_t>(in + 6);
  const std::uint16_t known =
      head.kind == FrameKind::kData ? FrameHead::kAckNow | FrameHead::kSplit : 0;
  if ((head.flags & ~known) != 0)
    return protocolError("unknown frame flags " + std::to_string(head.flags));
  head.sequence = loadLittle<std::uint64_t>(in + 8);
  head.ack = loadLittle<std::uint64_t>(in + 16);
  head.header_bytes = loadLittle<std::uint32_t>(in + 24);
  head.buffer_count = loadLittle<std::uint32_t>(in + 28);
  head.buffer_bytes = loadLittle<std::uint64_t>(in + 32);

  const std::uint32_t control_bytes =
      head.kind == FrameKind::kArenaOffer ? static_cast<std::uint32_t>(ArenaOffer::kBytes) : 0;
  if (head.kind != FrameKind::kData &&
      (head.header_bytes != control_bytes || head.buffer_count != 0 || head.buffer_bytes != 0)) {
    return protocolError("a control frame with contents");
  }
  if (head.header_bytes > limits.max_header_bytes) {
    return overLimit("header bytes", head.header_bytes, limits.max_header_bytes);
  }
  if (head.buffer_count > limits.max_buffers) {
    return overLimit("buffers", head.buffer_count, limits.max_buffers);
  }
  if (Error error = limits.skip_too_large ? Error::ok() : checkSize(head, limits)) return error;
  if (head.buffer_count == 0 && head.buffer_bytes != 0) {
    return protocolError("a frame with buffer bytes and without buffers");
  }
  return head;
}

}  // namespace weft::transport
