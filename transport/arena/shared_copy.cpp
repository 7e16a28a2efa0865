#include "transport/arena/shared_copy.h"

#include <algorithm>

#include "transport/base/spin.h"
#include "transport/io/event_loop.h"

namespace weft::transport {
namespace {
constexpr std::size_t kPiecesPerTurn = 16;  // 4 MiB: 0.1 ms, or a few where pages must be found
}  // namespace

SharedCopy::SharedCopy(std::span<const CopyRange> ranges) {
  std::size_t bytes = 0;
  for (const CopyRange& range : ranges) {
    bytes += range.bytes;
    for (std::size_t at = 0; at < range.bytes; at += kPiece)
      pieces_.push_back({range.to + at, range.from + at, std::min(kPiece, range.bytes - at)});
  }
  way_ = wayFor(bytes);
}

bool SharedCopy::copyNext() noexcept {
  const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
  if (next >= pieces_.size()) return false;
  const CopyRange& piece = pieces_[next];
  fastMemcpy(piece.to, piece.from, piece.bytes, way_);
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces_.size()) done_.notify_one();
  return true;
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
  if (spin.until([this] { return done_.load(std::memory_order_acquire) == pieces_.size(); }))
    return;
  for (std::size_t done = 0; (done = done_.load(std::memory_order_acquire)) != pieces_.size();)
    done_.wait(done, std::memory_order_acquire);
}

void helpCopy(EventLoop& loop, const std::shared_ptr<SharedCopy>& copy) {
  loop.post([&loop, copy] {
    if (copy->help(kPiecesPerTurn)) helpCopy(loop, copy);
  });
}

}  // namespace weft::transport
