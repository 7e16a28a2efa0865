// Buffers whose bytes come while they are being sent.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "transport/base/buffer.h"

namespace weft::transport {

class LateBytes : public Filling {
 public:
  std::function<void()> before_wait;
  std::atomic<int> waits{0};

  // They come `step` at a time.
  LateBytes(std::vector<OwnedBuffer> content, std::size_t step)
      : content_(std::move(content)), step_(step) {
    for (const OwnedBuffer& buffer : content_) {
      auto memory = std::make_shared<std::vector<std::byte>>(buffer.size, std::byte{0xee});
      buffers_.push_back({memory->data(), buffer.size, memory});
      total_ += buffer.size;
    }
  }
  const std::vector<OwnedBuffer>& buffers() const noexcept { return buffers_; }
  std::uint64_t filled() const noexcept override { return filled_.load(); }
  void waitBeyond(std::uint64_t bytes) noexcept override {
    if (filled_.load() == kAll) return;
    ++waits;
    if (before_wait) before_wait();
    const std::uint64_t upto = std::min<std::uint64_t>(total_, bytes + step_);
    std::uint64_t begin = 0;
    for (std::size_t i = 0; i < buffers_.size(); begin += buffers_[i].size, ++i) {
      const std::uint64_t first = std::max(begin, std::min(filled_.load(), total_));
      const std::uint64_t last = std::min(begin + buffers_[i].size, upto);
      if (first < last)
        std::memcpy(buffers_[i].data + (first - begin), content_[i].data + (first - begin),
                    last - first);
    }
    filled_ = upto == total_ ? kAll : upto;
  }

 private:
  const std::vector<OwnedBuffer> content_;
  const std::size_t step_;
  std::vector<OwnedBuffer> buffers_;
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> filled_{0};
};

}  // namespace weft::transport
