// What a fuzzer made up, read as numbers and bytes. It never ends: behind the last byte are zeros,
// so that a step which is cut short still means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

namespace weft::testing {

// An invariant of the code under a fuzzer.
inline void require(bool condition) {
  if (!condition) std::abort();
}

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  template <typename Number = std::uint8_t>
  Number number() {
    Number value{};
    const auto some = bytes(sizeof(value));
    if (!some.empty()) std::memcpy(&value, some.data(), some.size());
    return value;
  }
  // 0 to bound - 1, of one byte.
  std::size_t below(std::size_t bound) { return number() % bound; }
  bool oneIn(std::size_t chances) { return below(chances) == 0; }
  // So many, or those that are left.
  std::span<const std::byte> bytes(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::string text(std::size_t count) {
    const auto some = bytes(count);
    return {reinterpret_cast<const char*>(some.data()), some.size()};
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace weft::testing
