#include "c10d_plugin/shm/segment/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::collectives::shm {
namespace {

using transport::systemError;
using transport::UniqueFd;

using ProcessToken = std::array<std::uint8_t, 16>;

// Tells this process from all others. Process ids do not across containers.
Result<ProcessToken> processToken() {
  static std::optional<transport::ForkGuard> made_in;
  static ProcessToken token;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!made_in || !made_in->inOwnProcess()) {
    if (Error error = transport::fillRandom(token)) return error;
    made_in.emplace();
  }
  return token;
}

struct flock lockOf(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

Error protocolError(const std::string& what) {
  return {ErrorCode::kProtocol, "rank 0's shared memory " + what};
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::create(const Layout& layout) {
  Magic magic{};
  if (Error error = transport::fillRandom(magic)) return error;
  Result<UniqueFd> fd = transport::makeMemory("weft-group", layout.fileBytes(),
                                              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (!fd.ok()) return fd.error();
  Result<std::shared_ptr<Segment>> made = map(std::move(fd).value(), layout);
  if (!made.ok()) return made.error();
  const Segment& segment = *made.value();
  // What every operation touches.
  if (Error error =
          transport::obtainMemory(segment.fd(), 0, segment.base_, layout.small(layout.ranks, 0))) {
    return error;
  }
  segment.header().magic = magic;
  return made;
}

Result<std::shared_ptr<Segment>> Segment::open(const Layout& layout, const Magic& magic,
                                               UniqueFd fd) {
  const Result<transport::SealedMemory> memory = transport::sealedMemory(fd.get(), F_SEAL_SHRINK);
  if (!memory.ok()) return memory.error();
  if (memory.value().bytes != layout.fileBytes()) {
    return protocolError("has " + std::to_string(memory.value().bytes) + " bytes instead of " +
                         std::to_string(layout.fileBytes()));
  }
  Result<std::shared_ptr<Segment>> segment = map(std::move(fd), layout);
  if (segment.ok() && segment.value()->magic() != magic)
    return protocolError("does not hold the group's magic number");
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::map(UniqueFd fd, const Layout& layout) {
  const std::size_t bytes = layout.heapsBegin();
  void* const base = transport::mapAligned(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return systemError("mapping a group's shared memory", errno);
  // A forked child is no rank and would keep the memory alive.
  ::madvise(base, bytes, MADV_DONTFORK);
  return std::shared_ptr<Segment>(
      new Segment(std::move(fd), static_cast<std::byte*>(base), layout));
}

Segment::Segment(UniqueFd fd, std::byte* base, const Layout& layout)
    : fd_(std::move(fd)),
      base_(base),
      layout_(layout),
      heaps_(std::make_unique<std::atomic<std::byte*>[]>(static_cast<std::size_t>(layout.ranks))) {}

Segment::~Segment() {
  // In a forked child something else may be mapped at these addresses.
  if (!fork_guard_.inOwnProcess()) return;
  ::munmap(base_, layout_.heapsBegin());
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    std::byte* const mapped = heaps_[static_cast<std::size_t>(rank)].load();
    if (mapped != nullptr) ::munmap(mapped, layout_.heap_bytes);
  }
}

Header& Segment::header() const noexcept { return *std::launder(reinterpret_cast<Header*>(base_)); }

Control& Segment::control(int rank) const noexcept {
  return *std::launder(reinterpret_cast<Control*>(base_ + layout_.control(rank)));
}

std::uint64_t* Segment::sizes(int rank, unsigned parity, SizeTable table) const noexcept {
  const std::size_t which = std::size_t{kSizeTables} * parity + static_cast<std::size_t>(table);
  std::byte* const tables = base_ + layout_.control(rank) + sizeof(Control);
  return std::launder(reinterpret_cast<std::uint64_t*>(tables)) +
         which * static_cast<std::size_t>(layout_.ranks);
}

Error Segment::enter(int rank) {
  Result<ProcessToken> token = processToken();
  if (!token.ok()) return token.error();
  struct flock lock = lockOf(rank);
  if (::fcntl(fd_.get(), F_SETLK, &lock) != 0) {
    return {ErrorCode::kSystem, "rank " + std::to_string(rank) +
                                    " cannot lock its place in the group's shared memory (" +
                                    transport::errnoText(errno) +
                                    "); another process may have this rank"};
  }
  Control& own = control(rank);
  own.process = token.value();
  own.presence.store(static_cast<std::uint32_t>(Presence::kHere), std::memory_order_seq_cst);
  return Error::ok();
}

void Segment::leave(int rank) noexcept {
  if (!fork_guard_.inOwnProcess()) return;
  Control& own = control(rank);
  own.presence.store(static_cast<std::uint32_t>(Presence::kLeft), std::memory_order_seq_cst);
  wakeAll(own.progress);
}

Presence Segment::presence(int rank) const noexcept {
  switch (control(rank).presence.load(std::memory_order_acquire)) {
    case 0:
      return Presence::kNotYet;
    case 1:
      return Presence::kHere;
    default:
      return Presence::kLeft;
  }
}

bool Segment::died(int rank) const noexcept {
  if (presence(rank) != Presence::kHere) return false;
  // A process does not see its own locks; ranks in threads of one process die together.
  const Result<ProcessToken> token = processToken();
  if (!token.ok() || token.value() == control(rank).process) return false;
  struct flock lock = lockOf(rank);
  return ::fcntl(fd_.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
         presence(rank) == Presence::kHere;
}

Result<std::byte*> Segment::heap(int rank) {
  std::atomic<std::byte*>& known = heaps_[static_cast<std::size_t>(rank)];
  if (std::byte* const mapped = known.load(std::memory_order_acquire)) return mapped;
  const std::lock_guard<std::mutex> lock(heaps_mutex_);
  if (std::byte* const mapped = known.load(std::memory_order_relaxed)) return mapped;
  const std::size_t bytes = layout_.heap_bytes;
  if (bytes == 0) return Error(ErrorCode::kSystem, "the group has no shared memory for tensors");
  void* const base = transport::mapAligned(
      bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), layout_.heap(rank));
  if (base == MAP_FAILED) {
    return systemError("mapping rank " + std::to_string(rank) + "'s shared tensors", errno);
  }
  ::madvise(base, bytes, MADV_DONTFORK);
  known.store(static_cast<std::byte*>(base), std::memory_order_release);
  return static_cast<std::byte*>(base);
}

Error Segment::obtainBuffers(int rank) {
  const std::size_t at = layout_.buffer(rank, 0);
  const std::size_t bytes = layout_.buffer_bytes * kBuffers;
  transport::makeHuge(base_ + at, bytes);
  return transport::obtainMemory(fd_.get(), at, base_ + at, bytes);
}

// Not the PRIVATE forms: the word is at another address in each process.
void sleepOn(Word& word, std::uint32_t value, std::chrono::nanoseconds longest) noexcept {
  timespec time{};
  time.tv_sec = static_cast<time_t>(longest.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(longest.count() % 1'000'000'000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wakeAll(Word& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weft::collectives::shm
