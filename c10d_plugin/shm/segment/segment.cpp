#include "c10d_plugin/shm/segment/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/pages.h"

namespace weft::collectives::shm {
namespace {

using transport::systemError;
using transport::UniqueFd;

using ProcessToken = std::array<std::uint8_t, 16>;

// Tells this process from all others, which a process id does not across containers.
Result<ProcessToken> processToken() {
  static std::atomic<pid_t> made_by{0};
  static ProcessToken token;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (made_by.load() != ::getpid()) {
    if (Error error = transport::fillRandom(token)) return error;
    made_by.store(::getpid());
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

Error lie(const std::string& what) {
  return {ErrorCode::kProtocol, "rank 0's shared memory " + what};
}

}  // namespace

Layout Layout::of(int ranks, std::size_t buffer_bytes, std::size_t small_bytes,
                  std::size_t heap_bytes) {
  // Measured with two and four ranks on two cores with 1 MiB of second-level cache each. Smaller
  // ones cost more meetings, larger ones fall out of the caches before they are read again.
  constexpr std::size_t kBuffer = std::size_t{512} << 10;
  constexpr std::size_t kBufferOfMany = std::size_t{256} << 10;
  Layout layout;
  layout.ranks = ranks;
  const auto count = static_cast<std::size_t>(ranks);
  if (buffer_bytes == 0) buffer_bytes = ranks <= 8 ? kBuffer : kBufferOfMany;
  // Room for a cache line for each of the others.
  layout.buffer_bytes = roundUp(std::max(buffer_bytes, count * kCacheLine), kPage);
  if (small_bytes != 0) layout.small_bytes = roundUp(small_bytes, kPage);
  const std::size_t tables = std::size_t{2} * kSizeTables * count * sizeof(std::uint64_t);
  layout.control_bytes = roundUp(sizeof(Control) + tables, kPage);
  layout.heap_bytes = roundUp(heap_bytes, kHugePage);
  return layout;
}

Result<std::shared_ptr<Segment>> Segment::create(const Layout& layout) {
  Magic magic{};
  if (Error error = transport::fillRandom(magic)) return error;
  // Beyond this limit growing a file raises a signal that ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < layout.fileBytes()) {
    return systemError("making shared memory within the limit on file sizes", EFBIG);
  }
  UniqueFd fd(::memfd_create("weft-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return systemError("memfd_create for a group's shared memory", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(layout.fileBytes())) != 0) {
    return systemError("sizing a group's shared memory", errno);
  }
  // What every operation touches is obtained now: a lack of it is an error, not a signal.
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
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return lie("is not sealed against shrinking");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return systemError("asking for the size of memory", errno);
  if (static_cast<std::uint64_t>(status.st_size) != layout.fileBytes()) {
    return lie("has " + std::to_string(status.st_size) + " bytes instead of " +
               std::to_string(layout.fileBytes()));
  }
  Result<std::byte*> base = map(fd.get(), layout);
  if (!base.ok()) return base.error();
  std::shared_ptr<Segment> segment(new Segment(std::move(fd), base.value(), layout));
  if (segment->magic() != magic) return lie("does not show here what it holds there");
  return segment;
}

Result<std::byte*> Segment::map(int fd, const Layout& layout) {
  const std::size_t bytes_mapped = layout.heapsBegin();
  void* base = transport::mapAligned(bytes_mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  if (base == MAP_FAILED) return systemError("mapping a group's shared memory", errno);
  auto* const bytes = static_cast<std::byte*>(base);
  // A forked child is no rank, and would keep the memory alive.
  ::madvise(bytes, bytes_mapped, MADV_DONTFORK);
  return bytes;
}

Segment::Segment(UniqueFd fd, std::byte* base, const Layout& layout)
    : fd_(std::move(fd)),
      base_(base),
      layout_(layout),
      process_(::getpid()),
      heaps_(std::make_unique<std::atomic<std::byte*>[]>(static_cast<std::size_t>(layout.ranks))) {}

Segment::~Segment() {
  // In a forked child something else may lie where it is mapped here.
  if (::getpid() != process_) return;
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
  if (::getpid() != process_) return;
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
  // A process does not see its own locks: ranks in threads of one process die together.
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
  return obtain(base_ + at, at, layout_.buffer_bytes * kTurns);
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
