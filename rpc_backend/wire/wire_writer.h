// WireWriter: appends the header of a message to a byte vector. WireReader is its mirror.
//
// Call header(), then tensor() for each tensor, then deviceToken() if the header says
// device_memory. Threads: one at a time. The caller keeps the vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>& out) : out_(out) {}
  void header(const WireHeader& header);
  void tensor(const TensorMeta& meta);
  void deviceToken(std::span<const std::byte> token);

 private:
  template <typename T>
  void put(T value);
  void putVarint(std::uint64_t value);
  void putSizes(const TensorMeta& meta);
  void putBytes(std::span<const std::byte> bytes);

  std::vector<std::byte>& out_;
};

}  // namespace weft::rpc
