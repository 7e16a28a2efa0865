// HeaderStore: where a header is that is too long for the receive buffer, or must outlast it. Not
// cleared: a header of which only the length has come takes addresses, and no memory.
//
// Threads: one at a time. Failure: std::bad_alloc.
#pragma once

#include <cstddef>
#include <memory>

namespace weft::transport {

class HeaderStore {
 public:
  // What was there before is gone.
  std::byte* roomFor(std::size_t bytes) {
    if (bytes > capacity_ || bytes_ == nullptr) {
      capacity_ = 0;
      bytes_.reset();
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    return bytes_.get();
  }
  std::byte* data() const noexcept { return bytes_.get(); }

  void giveBackIfLarge() noexcept {
    if (capacity_ <= kKeep) return;
    capacity_ = 0;
    bytes_.reset();
  }

 private:
  static constexpr std::size_t kKeep = std::size_t{1} << 20;

  std::unique_ptr<std::byte[]> bytes_;
  std::size_t capacity_ = 0;
};

}  // namespace weft::transport
