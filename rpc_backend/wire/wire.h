// The header of an agent's message: its kind, the call that it belongs to, and the shape of each
// tensor in it. Without torch, so that it is fuzzed (tests/rpc_backend/fuzz_wire.cpp).
//
// docs/design/wire_format.md has the layout. Buffers follow in the order: payload (when it is not
// in the header), then each tensor that is neither in the header nor undefined.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rpc_backend/wire/tensor_layout.h"

namespace weft::rpc {

enum class WireKind : std::uint8_t { kRequest = 1, kResponse = 2, kControl = 3, kControlAck = 4 };

// Messages that only Weft's agents exchange (kControl). Payloads are text. The receiver answers
// each with a kControlAck of the same call id, whose text is empty on success, else the error.
enum class ControlType : std::uint16_t {
  kPing = 1,   // empty; sending it makes the loss of a silent peer known
  kJoin = 2,   // dynamic groups, and after a restart: the sender's MemberRecord
  kLeave = 3,  // dynamic groups: the sender goes
  // The sender has given up the request of the message's call id. Empty, and not acknowledged: the
  // request may be over.
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
  kPickled = 2,    // torch's own pickler made the bytes (sparse, quantised, …)
  kDevice = 3,     // as kDense, but the elements are in the sender's device memory
};

inline constexpr std::uint8_t kWireVersion = 3;
// Tensors of one message. encode() refuses more, so that the sender hears of it by name.
inline constexpr std::uint32_t kMaxTensors = 1U << 16;
// What each costs its receiver beside its bytes, roughly: a few header bytes become an object.
inline constexpr std::uint64_t kTensorCost = 512;
// And each of its dimensions: a size and a stride, and the stride of a view with gaps once more.
inline constexpr std::uint64_t kDimensionCost = 24;
inline constexpr std::uint32_t kNotInline = 0xffffffffU;
// A tensor or payload up to this size travels inside the header: a copy is cheaper than an iovec,
// an owner and a second read.
inline constexpr std::size_t kInlineTensorBytes = 512;
inline constexpr std::size_t kInlinePayloadBytes = 16384;
// The text of a control message: a MemberRecord may be so long.
inline constexpr std::size_t kMaxControlBytes = std::size_t{1} << 20;

struct TensorMeta {
  TensorForm form = TensorForm::kUndefined;
  bool requires_grad = false;
  std::uint8_t dtype = 0;        // c10::ScalarType's number
  std::uint8_t device_type = 0;  // c10::DeviceType's number, where the receiver puts it
  std::int8_t device_index = -1;
  std::uint8_t ndim = 0;
  std::array<std::int64_t, kMaxDims> sizes{};    // elements; first ndim are set
  std::array<std::int64_t, kMaxDims> strides{};  // elements; a permutation without gaps
  std::uint64_t bytes = 0;                  // kDense: elements times item size; kPickled: as sent
  std::span<const std::byte> inline_bytes;  // set when the bytes are in the header
  bool is_inline = false;
  // The elements travel in row-major order; the receiver lays them out with `strides`, which leave
  // gaps. So a view that is not dense stays one, and its storage is not sent.
  bool gapped = false;
};

// What it takes at its receiver beside its bytes.
std::uint64_t costOf(const TensorMeta& meta) noexcept;

struct WireHeader {
  WireKind kind = WireKind::kRequest;
  std::uint16_t type = 0;
  std::uint64_t call_id = 0;
  // Of a request: how long the caller still waits; 0: without end. 49 days at most, so that no sum
  // of it and a clock overflows.
  std::uint32_t timeout_ms = 0;
  std::uint32_t tensor_count = 0;
  bool payload_inline = true;
  // Tensors may be of form kDevice, and a token follows the last tensor.
  bool device_memory = false;
  // A last buffer follows, of one byte: 1 when all tensors were copied from their devices.
  bool staged = false;
  std::span<const std::byte> payload;  // when inline
};

// Appends to a byte vector; the mirror of WireReader.
class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>& out) : out_(out) {}
  void header(const WireHeader& header);
  void tensor(const TensorMeta& meta);
  // Behind the last tensor, if the header says device_memory.
  void deviceToken(std::span<const std::byte> token);

 private:
  template <typename T>
  void put(T value);
  void putVarint(std::uint64_t value);
  void putBytes(std::span<const std::byte> bytes);

  std::vector<std::byte>& out_;
};

// Reads what WireWriter wrote. Total: any bytes give values or an error text. Spans point into the
// bytes given.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool header(WireHeader& header);
  // `item_size` tells the element size of a dtype number, 0 for unknown ones.
  bool tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype));
  bool deviceToken(std::span<const std::byte>& token);
  // True when every byte was read.
  bool finished() const noexcept { return rest_.empty(); }
  // Of the tensors read so far: the memory that their gaps take beside their bytes.
  std::uint64_t gapBytes() const noexcept { return gaps_.bytes(); }
  const std::string& error() const noexcept { return error_; }

 private:
  template <typename T>
  bool get(T& value);
  bool getVarint(std::uint64_t& value);
  bool getBytes(std::uint64_t count, std::span<const std::byte>& bytes);
  bool getVarints(std::span<std::int64_t> values);
  bool shape(TensorMeta& meta, std::size_t item_size, bool contiguous);
  bool fail(const char* why);

  std::span<const std::byte> rest_;
  GapBudget gaps_;
  bool device_memory_ = false;  // the header says so
  std::string error_;
};

}  // namespace weft::rpc
