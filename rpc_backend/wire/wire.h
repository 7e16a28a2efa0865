// What the header of an agent's message says: its kind, the call that it belongs to, and the shape
// of each tensor in it. WireWriter writes it, WireReader reads it. Without torch, so that it is
// fuzzed (tests/rpc_backend/fuzz_wire.cpp).
//
// docs/design/wire_format.md has the layout. The message's buffers follow the header: the payload
// (if it is not in the header), then each tensor that is neither in the header nor undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rpc_backend/wire/tensor_layout.h"

namespace weft::rpc {

enum class WireKind : std::uint8_t { kRequest = 1, kResponse = 2, kControl = 3, kControlAck = 4 };

// Messages that only Weft's agents exchange (kControl). Payloads are text. The receiver answers
// each with a kControlAck of the same call id, whose text is empty on success, else the error.
enum class ControlType : std::uint16_t {
  kPing = 1,   // empty; sending it makes the loss of a silent peer known
  kJoin = 2,   // dynamic groups, and after a restart: the sender's MemberRecord
  kLeave = 3,  // dynamic groups: the sender leaves
  // The sender has given up its request with the message's call id. Empty, and not acknowledged,
  // because the request may be over.
  kCancel = 4,
  // CUDA memory of one process in another (DeviceTransfer). None of these is acknowledged.
  kDeviceProbe = 5,     // a token to try: can the receiver read that memory?
  kDeviceProbed = 6,    // the answer: empty, or why not
  kDeviceReturned = 7,  // the copies of a message's tensors are done; its kind as one digit
  // The two have lost each other and met again: RRef values that the sender was to create here,
  // with local ids below this number, and that are not here, never will be. Not acknowledged.
  kCreationsLost = 8,
};

// How a tensor's bytes are to be read.
enum class TensorForm : std::uint8_t {
  kUndefined = 0,  // an undefined tensor: no bytes
  kDense = 1,      // sizes, strides and raw elements
  kPickled = 2,    // torch's own pickler made the bytes (quantised, …)
  kDevice = 3,     // as kDense, but the elements are in the sender's device memory
  kSparse = 4,     // layout and sizes; the dense tensors just before it are its parts
};

inline constexpr std::uint8_t kWireVersion = 5;
// torch's MessageType is a byte and two flags (torch/csrc/distributed/rpc/message.h). Its enum
// holds no larger number, and a conversion of one is undefined.
inline constexpr std::uint16_t kMaxMessageType = 0x3ff;
// The most tensors of one message. encode() refuses more, so that the sender gets an error that
// says so.
inline constexpr std::uint32_t kMaxTensors = 1U << 16;
// Roughly what a tensor costs its receiver beside its bytes: a few header bytes become an object.
inline constexpr std::uint64_t kTensorCost = 512;
// What each of its dimensions costs: a size, a stride, and the stride of a view with gaps again.
inline constexpr std::uint64_t kDimensionCost = 24;
// From a view's first element to the end of its last: a longer view with gaps arrives dense,
// because a few bytes of a header must not ask for much memory.
inline constexpr std::uint64_t kMaxGappedBytes = 1024;
inline constexpr std::uint32_t kNotInline = 0xffffffffU;
// A tensor or payload up to this size travels inside the header: a copy is cheaper than an iovec,
// an owner and a second read.
inline constexpr std::size_t kInlineTensorBytes = 512;
inline constexpr std::size_t kInlinePayloadBytes = 16384;
// The longest text of a control message; a MemberRecord is the longest.
inline constexpr std::size_t kMaxControlBytes = std::size_t{1} << 20;

struct TensorMeta {
  TensorForm form = TensorForm::kUndefined;
  bool requires_grad = false;
  std::uint8_t dtype = 0;        // c10::ScalarType's number
  std::uint8_t device_type = 0;  // c10::DeviceType's number, where the receiver puts it
  std::int8_t device_index = -1;
  std::uint8_t ndim = 0;
  Dimensions sizes{};       // elements; the first ndim are set
  Dimensions strides{};     // elements; a permutation without gaps, unless `gapped`
  std::uint64_t bytes = 0;  // kDense: elements times item size; kPickled: as sent; kSparse: 0
  std::span<const std::byte> inline_bytes;  // set when the bytes are in the header
  bool is_inline = false;
  std::uint8_t layout = 0;  // kSparse: c10::Layout's number
  bool coalesced = false;   // kSparse: no two elements have one place
  // The elements travel in row-major order, and the receiver lays them out with `strides`, which
  // leave gaps. So a view with gaps arrives with the same strides, but its storage is not sent.
  bool gapped = false;
};

// Whether the header has a tensor's dtype, sizes and strides.
constexpr bool hasShape(TensorForm form) noexcept {
  return form == TensorForm::kDense || form == TensorForm::kDevice;
}

// What a tensor costs its receiver beside its bytes.
constexpr std::uint64_t costOf(const TensorMeta& meta) noexcept {
  const bool has_sizes = hasShape(meta.form) || meta.form == TensorForm::kSparse;
  return kTensorCost + (has_sizes ? kDimensionCost * meta.ndim : 0) +
         (meta.gapped ? kMaxGappedBytes : 0);
}

struct WireHeader {
  WireKind kind = WireKind::kRequest;
  std::uint16_t type = 0;
  std::uint64_t call_id = 0;
  // How long the caller of a request still waits; 0: without end. At most 49 days, so that adding
  // it to a clock cannot overflow.
  std::uint32_t timeout_ms = 0;
  std::uint32_t tensor_count = 0;
  bool payload_inline = true;
  // Tensors may have the form kDevice, and a token follows the last tensor.
  bool device_memory = false;
  // One more buffer of one byte comes last: it is 1 once all tensors were copied from their
  // devices.
  bool staged = false;
  std::span<const std::byte> payload;  // when inline
};

// The payload as torch's messages have it; empty unless it is in the header.
inline std::span<const char> payloadIn(const WireHeader& head) noexcept {
  return {reinterpret_cast<const char*>(head.payload.data()), head.payload.size()};
}

}  // namespace weft::rpc
