// ArenaSender: whether and how the large buffers for one peer go through shared memory. It makes
// the arena when the first large buffer is sent over a Unix socket, and uses it once the peer has
// accepted it; until then, if the peer refuses it, and when it is full, buffers go through the
// socket.
//
// Threads: place(): any but the loop thread, because it copies; stats(): any; the rest: the loop
// thread. Failure: none for the sender of a message: a buffer that finds no room goes through the
// socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "transport/arena/arena_placement.h"
#include "transport/arena/shared_arena.h"
#include "transport/arena/shared_copy.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/options.h"

namespace weft::transport {

struct ArenaStats {
  std::uint64_t bytes_sent = 0;  // exported memory included
  std::uint64_t fallbacks = 0;   // large buffers that found no room, or that the peer refused
};

class ArenaSender {
 public:
  // `wanted` is called once, on the thread that sends the first large buffer; then call offer() on
  // the loop thread as soon as the peer is connected. `help`, if given, asks another thread to
  // help() with a large copy; that thread may come late or never.
  using Help = std::function<void(const std::shared_ptr<SharedCopy>&)>;
  ArenaSender(const ArenaOptions& options, std::function<void()> wanted, Help help = {});

  // Copies the message's large buffers into the arena, or exports them if `may_export`; then all
  // bytes of the message are there. Does not check the message.
  ArenaPlacement place(const Message& message, bool may_export = true);
  ArenaStats stats() const noexcept;

  // Whether to offer the arena on the present link, because it was never offered, or the answer was
  // lost with a link.
  bool wanted() const noexcept {
    const State state = state_.load();
    return state == State::kWanted || state == State::kOffered;
  }
  // The arena to offer, the same for all links of a session; null: there can be none, now or later.
  std::shared_ptr<SharedArena> offer();
  Error answered(bool accepted);  // kProtocol: nothing was offered
  // The peer is not on this host, or is gone: places nothing any more, and releases the memory.
  void close() noexcept;
  // Call it now and then: after a while without large buffers it gives back most of the memory.
  void tick(std::chrono::steady_clock::time_point now);

 private:
  enum class State : std::uint8_t { kIdle, kWanted, kOffered, kLive, kRefused, kClosed };

  bool isLarge(const OwnedBuffer& buffer) const noexcept;
  std::shared_ptr<SharedArena> arena() const;
  ArenaPlacement placeIn(std::shared_ptr<SharedArena> arena, const Message& message,
                         bool may_export);
  void copy(const Message& message, const ArenaPlacement& placement, const SharedArena& arena,
            std::size_t bytes) const;

  const ArenaOptions& options_;
  const std::function<void()> wanted_;
  const Help help_;
  std::atomic<State> state_{State::kIdle};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> fallbacks_{0};

  mutable std::mutex mutex_;
  std::shared_ptr<SharedArena> arena_;  // guarded by mutex_
};

}  // namespace weft::transport
