// Segment: the memory that the ranks of a group on one host share, and what they must know about
// each other to use it: who is there, who died, and why the group ended.
//
// The memory is a memfd: it has no name and is gone with its last user, also after a kill -9. It is
// sealed so that no rank can shrink it under the others.
//
// Each rank holds a POSIX record lock on one byte of the memfd for as long as it lives. The kernel
// drops the lock when the process dies, however it dies, and any rank can ask whether it is held.
// This needs no connection between each two ranks and no watching thread, works between containers
// (process ids do not), and is not inherited by the children that a data loader forks (an open
// socket is). Closing any descriptor of the memfd would drop the lock, so there is only one.
//
// Threads: any thread may call any member; one per rank calls enter() and leave().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/layout.h"
#include "transport/base/fork_guard.h"
#include "transport/base/os/unique_fd.h"

namespace weft::collectives::shm {

class Segment {
 public:
  static Result<std::shared_ptr<Segment>> create(const Layout& layout);
  // Maps what another rank made. Refused (kProtocol): memory that is not sealed, has another size,
  // or does not show the magic.
  static Result<std::shared_ptr<Segment>> open(const Layout& layout, const Magic& magic,
                                               transport::UniqueFd fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const noexcept { return fd_.get(); }
  const Layout& layout() const noexcept { return layout_; }
  const Magic& magic() const noexcept { return header().magic; }

  Control& control(int rank) const noexcept;
  // A rank's size table for operations that begin in steps of this parity; one word per rank.
  std::uint64_t* sizes(int rank, unsigned parity, SizeTable table) const noexcept;
  std::byte* small(int rank, std::uint64_t step) const noexcept {
    return base_ + layout_.small(rank, static_cast<unsigned>(step % kBuffers));
  }
  std::byte* buffer(int rank, std::uint64_t step) const noexcept {
    return base_ + layout_.buffer(rank, static_cast<unsigned>(step % kBuffers));
  }

  // From now on this process is rank `rank`, and the others see it leave or die.
  Error enter(int rank);
  void leave(int rank) noexcept;
  Presence presence(int rank) const noexcept;
  // True: it was there and its process is gone. Costs a system call: for a rank that has already
  // waited long.
  bool died(int rank) const noexcept;

  // The heap of a rank, mapped when it is first asked for. kSystem: it cannot be.
  Result<std::byte*> heap(int rank);

  // Ends the group for all ranks, unless it has ended, and wakes all sleepers.
  void fail(const Error& reason) noexcept;
  bool failed() const noexcept {
    return header().failure.state.load(std::memory_order_acquire) != FailureRecord::kNone;
  }
  // The reason; only if failed().
  Error failure() const;

  // Before and after writes into others' heaps, which stop soon after failed(). False: the group
  // has failed.
  bool beginWriting(int rank) noexcept;
  void endWriting(int rank) noexcept;
  // After failed(): waits until no living rank but `rank` writes any more. False: a process that
  // was stopped in the middle of writing still may.
  bool awaitWriters(int rank) noexcept;

  // Takes the memory of a rank's large buffers at once instead of page by page. kSystem: there is
  // none.
  Error obtainBuffers(int rank);

 private:
  Segment(transport::UniqueFd fd, std::byte* base, const Layout& layout);
  static Result<std::shared_ptr<Segment>> map(transport::UniqueFd fd, const Layout& layout);
  Header& header() const noexcept;

  const transport::UniqueFd fd_;
  std::byte* const base_;
  const Layout layout_;
  const transport::ForkGuard fork_guard_;

  std::mutex heaps_mutex_;                                  // for mapping them
  const std::unique_ptr<std::atomic<std::byte*>[]> heaps_;  // by rank; null: not mapped
};

// Sleeps while `word` is `value`, at most `longest`, on memory shared between processes; may
// return early. wakeAll wakes all who sleep on it.
void sleepOn(Word& word, std::uint32_t value, std::chrono::nanoseconds longest) noexcept;
void wakeAll(Word& word) noexcept;

}  // namespace weft::collectives::shm
