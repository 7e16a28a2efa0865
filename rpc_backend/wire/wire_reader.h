// WireReader: reads the header of a message, as WireWriter wrote it.
//
// A total parser: any bytes give values or an error text; counts and sizes are checked before
// memory is taken. Call header(), then tensor() tensor_count times, then deviceToken() if the
// header says device_memory.
//
// Threads: one at a time. Ownership: the spans in what it reads point into the bytes given.
// Failure: a member returns false, and error() says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool header(WireHeader& header);
  // `item_size` gives the element size of a dtype number, 0 for an unknown one.
  bool tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype));
  bool deviceToken(std::span<const std::byte>& token);
  // Every byte was read.
  bool finished() const noexcept { return rest_.empty(); }
  const std::string& error() const noexcept { return error_; }

 private:
  template <typename T>
  bool get(T& value);
  bool getVarint(std::uint64_t& value);
  bool getBytes(std::uint64_t count, std::span<const std::byte>& bytes);
  bool getVarints(std::span<std::int64_t> values);
  bool getHead(WireHeader& header, std::uint32_t& inline_bytes);
  // The number of dimensions, and the sizes.
  bool getSizes(TensorMeta& meta);
  bool getShape(TensorMeta& meta, std::size_t item_size, bool contiguous);
  bool getSparse(TensorMeta& meta);
  bool fail(const char* why);

  std::span<const std::byte> rest_;
  bool device_memory_ = false;  // as the header says
  std::string error_;
};

}  // namespace weft::rpc
