#include "transport/shared_copy.h"

#include <algorithm>

#include "transport/arena_copy.h"
#include "transport/event_loop.h"
#include "transport/spin.h"

namespace weft::transport {
namespace {
constexpr std::size_t kPiecesPerTurn = 16;  // 4 MiB: 0.1 ms, or a few where pages must be found
}  // namespace

SharedCopy::SharedCopy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept
    : to_(to), from_(from), bytes_(bytes), pieces_((bytes + kPiece - 1) / kPiece) {}

bool SharedCopy::copyNext() noexcept {
  const std::size_t piece = next_.fetch_add(1, std::memory_order_relaxed);
  if (piece >= pieces_) return false;
  const std::size_t at = piece * kPiece;
  copyToArena(to_ + at, from_ + at, std::min(kPiece, bytes_ - at));
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces_) done_.notify_one();
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
