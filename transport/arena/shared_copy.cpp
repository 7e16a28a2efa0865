#include "transport/arena/shared_copy.h"

#include <algorithm>
#include <utility>

#include "transport/base/spin.h"
#include "transport/io/event_loop.h"

namespace weft::transport {
namespace {
constexpr std::size_t kPiecesPerTurn = 16;  // 4 MiB: 0.1 ms, or a few where pages must be found
}  // namespace

SharedCopy::SharedCopy(std::vector<CopyRange> ranges) : ranges_(std::move(ranges)) {
  ends_.reserve(ranges_.size());
  for (const CopyRange& range : ranges_) {
    bytes_ += range.bytes;
    ends_.push_back(bytes_);
  }
  pieces_ = (bytes_ + kPiece - 1) / kPiece;
  way_ = wayFor(bytes_);
}

bool SharedCopy::copyNext() noexcept {
  const std::size_t piece = next_.fetch_add(1, std::memory_order_relaxed);
  if (piece >= pieces_) return false;
  copyBytes(piece * kPiece, std::min((piece + 1) * kPiece, bytes_));
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces_) done_.notify_one();
  return true;
}

void SharedCopy::copyBytes(std::size_t begin, std::size_t end) noexcept {
  auto index =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; begin < end; ++index) {
    const CopyRange& range = ranges_[index];
    const std::size_t at = begin - (ends_[index] - range.bytes);
    const std::size_t some = std::min(end, ends_[index]) - begin;
    fastMemcpy(range.to + at, range.from + at, some, way_);
    begin += some;
  }
}

bool SharedCopy::help(std::size_t pieces) noexcept {
  for (std::size_t i = 0; i < pieces; ++i) {
    if (!copyNext()) return false;
  }
  return true;
}

void SharedCopy::finish() noexcept {
  while (copyNext()) {
  }
  AdaptiveSpin spin;
  if (spin.until([this] { return done_.load(std::memory_order_acquire) == pieces_; })) return;
  for (std::size_t done = done_.load(std::memory_order_acquire); done != pieces_;
       done = done_.load(std::memory_order_acquire)) {
    done_.wait(done, std::memory_order_acquire);
  }
}

void helpCopy(EventLoop& loop, const std::shared_ptr<SharedCopy>& copy) {
  loop.post([&loop, copy] {
    if (copy->help(kPiecesPerTurn)) helpCopy(loop, copy);
  });
}

}  // namespace weft::transport
