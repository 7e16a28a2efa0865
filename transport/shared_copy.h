// SharedCopy: one large copy that two threads do together, piece by piece.
//
// One core copies about 40 GB/s between its caches and the other's; two, where the second would
// idle, twice that. Whoever comes takes the next piece that nobody has begun, so a helper that
// comes late, or never, costs nothing but the wait for the piece it is at. Pieces are small for
// that wait's sake.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace weft::transport {

class EventLoop;

class SharedCopy {
 public:
  // Below this waking a helper costs more than it saves.
  static constexpr std::size_t kWorthHelp = std::size_t{4} << 20;
  static constexpr std::size_t kPiece = std::size_t{256} << 10;

  // Neither range may be touched by others, or go away, before finish() has returned.
  SharedCopy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

  // Any thread, also after finish(), when it touches nothing. Copies at most `pieces`; false: all
  // have been begun.
  bool help(std::size_t pieces) noexcept;
  // Once, by the owner of the ranges: copies what is left and waits for the helpers' pieces.
  void finish() noexcept;

 private:
  bool copyNext() noexcept;

  std::byte* const to_;
  const std::byte* const from_;
  const std::size_t bytes_;
  const std::size_t pieces_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> done_{0};
};

// Has the loop thread help, a few milliseconds at a time at worst: it has others to serve.
void helpCopy(EventLoop& loop, const std::shared_ptr<SharedCopy>& copy);

}  // namespace weft::transport
