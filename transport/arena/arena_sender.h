// ArenaSender: whether and how a peer's large buffers go through shared memory. It makes the arena
// when the first large buffer is sent over a Unix socket, and uses it once the peer has said that
// it sees the memory; before, without, and when it is full, buffers go through the socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/arena/shared_arena.h"
#include "transport/arena/shared_copy.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/memory/exported_block.h"
#include "transport/memory/idle_detector.h"
#include "transport/options.h"

namespace weft::transport {

// The buffers of one message that lie in the arena, already copied, or in exported blocks, not
// copied. It ends with its frame: when that was acknowledged, or will never be. Blocks of the arena
// that were not handed over to the receiver, or taken back from it, are free then.
class ArenaPlacement {
 public:
  struct Entry {
    std::uint32_t buffer = 0;  // index in the message; ascending
    ArenaDescriptor where;
    std::shared_ptr<ExportedBlock> exported;  // null: it lies in the arena
  };

  ArenaPlacement() = default;
  explicit ArenaPlacement(std::shared_ptr<SharedArena> arena)
      : arena_(std::move(arena)), blocks_(Blocks::kOurs) {}
  ArenaPlacement(ArenaPlacement&& other) noexcept
      : arena_(std::move(other.arena_)),
        blocks_(std::exchange(other.blocks_, Blocks::kNone)),
        entries_(std::move(other.entries_)),
        fds_(std::move(other.fds_)) {}
  ArenaPlacement& operator=(ArenaPlacement&& other) noexcept;
  ~ArenaPlacement() { letGo(); }

  void add(std::uint32_t buffer, const ArenaDescriptor& where) {
    entries_.push_back({buffer, where, nullptr});
  }
  // These bytes of `block` can go as they are, at `offset` in its file. False: this frame has as
  // many blocks as it can take along.
  bool add(std::uint32_t buffer, const std::shared_ptr<ExportedBlock>& block, std::uint64_t offset);
  // The descriptors to send with the frame, in the order in which the entries count them.
  const std::vector<int>& fds() const noexcept { return fds_; }
  // The exported ones will be written with the frame.
  void keepToArena() noexcept;
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // Frames name the blocks of the entries.
  bool inArena() const noexcept {
    return blocks_ == Blocks::kOurs || blocks_ == Blocks::kHandedOver;
  }
  // The frame that names them is numbered. A receiver may take them from now on.
  void handOver() noexcept;
  // The bytes of a block, for a frame that is to carry them itself.
  OwnedBuffer bytes(const Entry& entry, std::uint64_t size) const;
  // No frame names the blocks any more.
  void takeBack() noexcept;

 private:
  enum class Blocks : std::uint8_t {
    kNone,
    kOurs,        // no frame with a number names them
    kHandedOver,  // the receiver frees them
    kOursInline,  // as kOurs, and a frame carries their bytes
    kTakenBack,  // as kHandedOver, but a frame carries their bytes: the receiver may never see them
  };
  void letGo() noexcept;

  std::shared_ptr<SharedArena> arena_;
  Blocks blocks_ = Blocks::kNone;
  std::vector<Entry> entries_;
  std::vector<int> fds_;
};

struct ArenaStats {
  std::uint64_t bytes_sent = 0;  // exported memory included
  std::uint64_t fallbacks = 0;   // large buffers that found no room, or a peer that refused
};

class ArenaSender {
 public:
  // `wanted` is called once, on the thread that sends the first large buffer: offer() should be
  // called on the loop thread as soon as the peer is connected. `help`, where given, has another
  // thread help() with a large copy, soon or never.
  using Help = std::function<void(const std::shared_ptr<SharedCopy>&)>;
  ArenaSender(const ArenaOptions& options, std::function<void()> wanted, Help help = {});

  // Any thread but the loop's: it copies. Errors of the message are left for others to find.
  // `may_export`: exported memory need not be copied.
  ArenaPlacement place(const Message& message, bool may_export = true);
  ArenaStats stats() const noexcept;

  // --- loop thread ---
  // It should be offered on the link that is up: it never was, or the answer was lost with a link.
  bool wanted() const noexcept {
    const State state = state_.load();
    return state == State::kWanted || state == State::kOffered;
  }
  // An arena to offer, the same for all links of a session; null when there can be none (then it is
  // off for good).
  std::shared_ptr<SharedArena> offer();
  Error accepted();  // kProtocol: nothing was offered
  Error refused();
  // Off for good: the peer is not of this host, or gone. Lets the memory go.
  void close() noexcept;
  // Now and then: after a while without large buffers, gives back most of the memory.
  void tick(std::chrono::steady_clock::time_point now);

 private:
  enum class State : std::uint8_t { kIdle, kWanted, kOffered, kLive, kRefused, kClosed };

  std::shared_ptr<SharedArena> arena() const;
  using Exported = std::vector<std::shared_ptr<ExportedBlock>>;
  Exported exported(const Message& message) const;
  static bool placeExported(const OwnedBuffer& buffer, std::uint32_t index,
                            const std::shared_ptr<ExportedBlock>& block, ArenaPlacement& placement);
  void copyTogether(std::vector<CopyRange> ranges) const;

  const ArenaOptions& options_;
  const std::function<void()> wanted_;
  const Help help_;
  std::atomic<State> state_{State::kIdle};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> fallbacks_{0};

  mutable std::mutex mutex_;
  std::shared_ptr<SharedArena> arena_;  // guarded by mutex_

  // loop thread
  IdleDetector idle_;
};

}  // namespace weft::transport
