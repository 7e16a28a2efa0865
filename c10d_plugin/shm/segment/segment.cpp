#include "c10d_plugin/shm/segment/segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::collectives::shm {
namespace {

using transport::systemError;
using transport::UniqueFd;

using ProcessToken = std::array<std::uint8_t, 16>;

// Tells this process from all others. Process ids do not across containers.
Result<ProcessToken> processToken() {
  static std::optional<ForkGuard> made_in;
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
  Result<UniqueFd> made = transport::makeMemory("weft-group", layout.fileBytes());
  if (!made.ok()) return made.error();
  UniqueFd fd = std::move(made).value();
  // Memory that every operation touches is taken now: a lack of it is an error, not a signal.
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(layout.small(layout.ranks, 0))) != 0) {
    return systemError("obtaining a group's shared memory", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return systemError("sealing a group's shared memory", errno);
  }
  Result<std::byte*> base = map(fd.get(), layout);
  if (!base.ok()) return base.error();
  std::memcpy(base.value(), magic.data(), magic.size());
  return std::shared_ptr<Segment>(new Segment(std::move(fd), base.value(), layout));
}

Result<std::shared_ptr<Segment>> Segment::open(const Layout& layout, const Magic& magic,
                                               UniqueFd fd) {
  const Result<transport::SealedMemory> memory = transport::sealedMemory(fd.get(), F_SEAL_SHRINK);
  if (!memory.ok()) return memory.error();
  if (memory.value().bytes != layout.fileBytes()) {
    return protocolError("has " + std::to_string(memory.value().bytes) + " bytes instead of " +
                         std::to_string(layout.fileBytes()));
  }
  Result<std::byte*> base = map(fd.get(), layout);
  if (!base.ok()) return base.error();
  std::shared_ptr<Segment> segment(new Segment(std::move(fd), base.value(), layout));
  if (segment->magic() != magic) return protocolError("does not hold the group's magic number");
  return segment;
}

Result<std::byte*> Segment::map(int fd, const Layout& layout) {
  const std::size_t bytes_mapped = layout.heapsBegin();
  void* base = transport::mapAligned(bytes_mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  if (base == MAP_FAILED) return systemError("mapping a group's shared memory", errno);
  auto* const bytes = static_cast<std::byte*>(base);
  // A forked child is no rank and would keep the memory alive.
  ::madvise(bytes, bytes_mapped, MADV_DONTFORK);
  return bytes;
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
    return {ErrorCode::kSystem,
            "rank " + std::to_string(rank) + " cannot show that it lives (fcntl F_SETLK): " +
                transport::errnoText(errno) + "; is another process this rank?"};
  }
  Control& own = control(rank);
  own.process = token.value();
  own.presence.store(static_cast<std::uint32_t>(Presence::kHere), std::memory_order_seq_cst);
  wakeAll(own.presence);
  return Error::ok();
}

void Segment::leave(int rank) noexcept {
  if (!fork_guard_.inOwnProcess()) return;
  Control& own = control(rank);
  own.presence.store(static_cast<std::uint32_t>(Presence::kLeft), std::memory_order_seq_cst);
  wakeAll(own.presence);
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
  return obtain(base_ + at, at, layout_.buffer_bytes * kBuffers);
}

Error Segment::obtainHeap(int rank, std::size_t offset, std::size_t bytes) {
  std::byte* const base = heaps_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  return obtain(base + offset, layout_.heap(rank) + offset, bytes);
}

Error Segment::obtain(std::byte* mapped, std::size_t at, std::size_t bytes) const {
  transport::makeHuge(mapped, bytes);
  if (::madvise(mapped, bytes, MADV_POPULATE_WRITE) == 0) return Error::ok();
  // A kernel before 5.14. This gives small pages only.
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return Error::ok();
  return systemError("obtaining " + std::to_string(bytes) + " bytes of a group's shared memory",
                     errno);
}

}  // namespace weft::collectives::shm
