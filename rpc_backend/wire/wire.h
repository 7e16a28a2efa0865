// The header that the agent puts before a message's buffers: what the message is,
// which call it belongs to, and the shape of each tensor in it. No torch here: what
// reads bytes of the network is small, total and fuzzed (tests/rpc_backend/fuzz_wire.cpp).
//
// Layout, little endian, in order (docs/design/wire_format.md holds the table):
//   u8  version (1)
//   u8  kind            WireKind
//   u16 type            torch::distributed::rpc::MessageType, or ControlType
//   u32 tensor count
//   u64 call id
//   u32 inline payload bytes  (kNotInline: the payload is the first buffer)
//   … payload, when inline
//   … one TensorMeta per tensor
// Buffers follow in the order: payload (when not inline), then each tensor that is
// neither inline nor undefined.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

enum class WireKind : std::uint8_t { kRequest = 1, kResponse = 2, kControl = 3, kControlAck = 4 };

// How a tensor's bytes are to be read.
enum class TensorForm : std::uint8_t {
  kUndefined = 0,  // an undefined tensor: no bytes
  kDense = 1,      // sizes, strides and raw elements
  kPickled = 2,    // torch's own pickler made the bytes (sparse, quantised, …)
};

inline constexpr std::uint8_t kWireVersion = 1;
inline constexpr std::uint32_t kNotInline = 0xffffffffU;
inline constexpr std::size_t kMaxDims = 64;
// A tensor or payload up to this size travels inside the header: copying it is cheaper
// than an iovec, an owner and a second read.
inline constexpr std::size_t kInlineTensorBytes = 512;
inline constexpr std::size_t kInlinePayloadBytes = 16384;

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
  // The elements travel in row-major order, and the receiver lays them out with `strides`, which
  // leave gaps: a view that is not dense stays one, without its storage being sent.
  bool gapped = false;
};

struct WireHeader {
  WireKind kind = WireKind::kRequest;
  std::uint16_t type = 0;
  std::uint64_t call_id = 0;
  std::uint32_t tensor_count = 0;
  bool payload_inline = true;
  std::span<const std::byte> payload;  // when inline
};

// Appends to a byte vector; the mirror of WireReader.
class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>& out) : out_(out) {}
  void header(const WireHeader& header);
  void tensor(const TensorMeta& meta);

 private:
  template <typename T>
  void put(T value);
  void putVarint(std::uint64_t value);
  void putBytes(std::span<const std::byte> bytes);

  std::vector<std::byte>& out_;
};

// Reads what WireWriter wrote. Total: any bytes give values or an error text, never
// a read past the end. Spans point into the bytes given.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool header(WireHeader& header);
  // `item_size` tells the element size of a dtype number, 0 for unknown ones.
  bool tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype));
  // True when every byte was read.
  bool finished() const noexcept { return rest_.empty(); }
  const std::string& error() const noexcept { return error_; }

 private:
  template <typename T>
  bool get(T& value);
  bool getVarint(std::uint64_t& value);
  bool getBytes(std::uint64_t count, std::span<const std::byte>& bytes);
  bool shape(TensorMeta& meta, std::size_t item_size, bool contiguous);
  bool fail(const char* why);

  std::span<const std::byte> rest_;
  std::string error_;
};

// Bytes that a non-overlapping layout with gaps spans, or nothing when it overlaps or overflows.
std::optional<std::uint64_t> gappedSpan(std::span<const std::int64_t> sizes,
                                        std::span<const std::int64_t> strides,
                                        std::size_t item_size);
// Whether a layout with gaps is worth keeping: small, or at least half full. A receiver refuses
// others, so that few bytes cannot ask for much memory.
bool worthKeepingGaps(std::uint64_t span_bytes, std::uint64_t element_bytes);

// Elements of a dense tensor times item size, or nothing when a size is negative, the
// product overflows, or the strides are not a gapless permutation of the sizes.
std::optional<std::uint64_t> denseBytes(std::span<const std::int64_t> sizes,
                                        std::span<const std::int64_t> strides,
                                        std::size_t item_size);

}  // namespace weft::rpc
