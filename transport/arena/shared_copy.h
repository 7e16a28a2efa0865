// SharedCopy: the large buffers of one message, copied by two threads together, piece by piece.
//
// Two cores copy twice as fast as one. Each thread takes the next piece that nobody has begun, so a
// helper that comes late, or never, delays the owner by one piece at most. Pieces are small for
// that reason.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/memory/fast_memcpy.h"

namespace weft::transport {

class EventLoop;

struct CopyRange {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

class SharedCopy {
 public:
  // Below this waking a helper costs more than it saves.
  static constexpr std::size_t kWorthHelp = std::size_t{4} << 20;
  static constexpr std::size_t kPiece = std::size_t{256} << 10;

  // The ranges must stay, untouched by others, until finish() has returned.
  explicit SharedCopy(std::span<const CopyRange> ranges);

  // Any thread, also after finish(), when it does nothing. Copies at most `pieces`; false: all have
  // been begun.
  bool help(std::size_t pieces) noexcept;
  // Once, by the owner of the ranges: copies what is left and waits for the helpers' pieces.
  void finish() noexcept;

 private:
  bool copyNext() noexcept;

  std::vector<CopyRange> pieces_;
  CopyWay way_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> done_{0};
};

// The loop thread helps, at most a few milliseconds at a time: it has others to serve.
void helpCopy(EventLoop& loop, const std::shared_ptr<SharedCopy>& copy);

}  // namespace weft::transport
