#include "transport/memory/exported_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/pagemap.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Not F_SEAL_WRITE, which looks at every page for users of it. Without a shared mapping, which its
// maker has given up by then, this one means the same.
constexpr int kContentSeals = F_SEAL_FUTURE_WRITE;
constexpr std::chrono::seconds kKeptFor{2};

// Kernels from 6.1 to 6.10 may lack the bit for "of a file" where pages are huge (Linux
// 3f9f022e975d): such memory would be copied each time it is sent. It gets small pages there.
std::atomic<bool> huge_are_told{true};

std::atomic<std::uint64_t> bytes_sent{0};

struct Mapping {
  UniqueFd fd;
  std::byte* base = nullptr;
};

Result<Mapping> makeMapping(std::size_t bytes) {
  Result<UniqueFd> memory = makeMemory("weft-export", bytes);
  if (!memory.ok()) return memory.error();
  UniqueFd fd = std::move(memory).value();
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0)
    return systemError("sealing shared memory", errno);
  void* const base = mapAligned(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return systemError("mapping shared memory", errno);
  auto* const data = static_cast<std::byte*>(base);
  if (huge_are_told.load(std::memory_order_relaxed)) makeHuge(data, bytes);
  // One call instead of a page fault for each 4 KiB; older kernels don't know it.
  if (::madvise(base, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const int error = errno;
    ::munmap(base, bytes);
    return systemError("obtaining shared memory", error);
  }
  if (bytes >= kMemoryChunk && hasOwnPages(data, 1)) huge_are_told.store(false);
  return Mapping{std::move(fd), data};
}

}  // namespace

ExportedBlock::ExportedBlock(std::shared_ptr<const ExportRegistry::File> file, std::byte* base,
                             std::size_t mapped, std::uint64_t file_offset, std::size_t skip,
                             std::size_t size, State state)
    : file_(std::move(file)),
      base_(base),
      mapped_(mapped),
      file_offset_(file_offset),
      data_(base + skip),
      size_(size),
      own_(state == State::kShared),
      state_(state) {}

Result<std::shared_ptr<ExportedBlock>> ExportedBlock::create(std::size_t bytes) {
  const std::size_t mapped = roundUp(std::max<std::size_t>(bytes, 1), pageBytes());
  ExportRegistry& all = ExportRegistry::get();
  if (Error error = all.reserve(mapped)) return error;
  Result<Mapping> mapping = makeMapping(mapped);
  if (!mapping.ok()) {
    all.unreserve(mapped, true);
    return mapping.error();
  }
  std::shared_ptr<ExportedBlock> block(
      new ExportedBlock(std::make_shared<const ExportRegistry::File>(std::move(mapping.value().fd)),
                        mapping.value().base, mapped, 0, 0, bytes, State::kShared));
  all.insert(*block);
  return block;
}

std::shared_ptr<ExportedBlock> ExportedBlock::find(const std::byte* data, std::size_t size) {
  return ExportRegistry::get().find(data, size);
}

ExportedBlock::~ExportedBlock() {
  if (own_) {
    ExportRegistry::get().erase(*this);
    ExportRegistry::get().unreserve(mapped_, false);
  }
  ::munmap(base_, mapped_);
}

void ExportedBlock::freezeLocked() noexcept {
  if (state_ != State::kShared) return;
  // In one step: no thread finds the address without memory.
  const bool frozen = ::mmap(base_, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd(),
                             0) != MAP_FAILED &&
                      ::fcntl(fd(), F_ADD_SEALS, kContentSeals) == 0;
  state_ = frozen ? State::kFrozen : State::kUnfit;
}

std::optional<std::uint64_t> ExportedBlock::offer(const std::byte* data, std::size_t size) {
  {
    const std::lock_guard<std::mutex> lock(ExportRegistry::get().mutex());
    freezeLocked();
    if (state_ != State::kFrozen || !file_->fd.valid()) return std::nullopt;
  }
  if (hasOwnPages(data, size)) return std::nullopt;
  return file_offset_ + static_cast<std::uint64_t>(data - base_);
}

OwnedBuffer ExportedBlock::offered(std::uint64_t offset, std::size_t size) const {
  const std::uint64_t first = offset / pageBytes() * pageBytes();
  const std::size_t mapped = offset - first + size;
  void* const base = mapAligned(mapped, PROT_READ, MAP_PRIVATE, fd(), first);
  if (base != MAP_FAILED) {
    std::shared_ptr<void> owner(base, [mapped](void* memory) { ::munmap(memory, mapped); });
    return {static_cast<std::byte*>(base) + (offset - first), size, std::move(owner)};
  }
  std::shared_ptr<std::byte[]> copy(new std::byte[size]);
  for (std::size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(fd(), copy.get() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // it is memory, and as long as it says
    done += static_cast<std::size_t>(got);
  }
  return {copy.get(), size, copy};
}

ExportedBlock::Stats ExportedBlock::stats() {
  const ExportRegistry::Held held = ExportRegistry::get().held();
  return {bytes_sent.load(std::memory_order_relaxed), held.bytes, held.blocks};
}

void ExportedBlock::countSent(std::uint64_t bytes) noexcept {
  bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
}

// --- received ---

Result<std::shared_ptr<ExportedBlock>> ExportedBlock::open(const UniqueFd& fd, std::uint64_t offset,
                                                           std::uint64_t size) {
  const Result<SealedMemory> memory = sealedMemory(fd.get(), F_SEAL_SHRINK | kContentSeals);
  if (!memory.ok()) return memory.error();
  const std::uint64_t bytes = memory.value().bytes;
  if (size == 0 || offset >= bytes || size > bytes - offset)
    return protocolError("a buffer outside of exported memory");
  ExportRegistry& all = ExportRegistry::get();
  if (auto known = all.reuse(memory.value(), offset, size)) return lend(std::move(known));
  const std::uint64_t first = offset / pageBytes() * pageBytes();
  const std::size_t skip = offset - first;
  const std::size_t mapped = roundUp(skip + size, pageBytes());
  void* const base = mapAligned(mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), first);
  if (base == MAP_FAILED) return systemError("mapping a peer's exported memory", errno);
  // The descriptor is optional: only needed to forward a received block.
  std::unique_ptr<ExportedBlock> block(new ExportedBlock(all.fileOf(fd, memory.value()),
                                                         static_cast<std::byte*>(base), mapped,
                                                         first, skip, size, State::kFrozen));
  block->memory_ = memory.value();
  return lend(std::move(block));
}

bool ExportedBlock::isPart(const SealedMemory& memory, std::uint64_t offset,
                           std::uint64_t size) const noexcept {
  return memory_.device == memory.device && memory_.inode == memory.inode && size_ == size &&
         file_offset_ + static_cast<std::uint64_t>(data_ - base_) == offset;
}

std::shared_ptr<ExportedBlock> ExportedBlock::lend(std::unique_ptr<ExportedBlock> block) {
  std::shared_ptr<ExportedBlock> lent(block.release(), [](ExportedBlock* raw) {
    std::unique_ptr<ExportedBlock> unused(raw);
    ExportRegistry::get().erase(*unused);
    const bool worth = unused->mapped_ <= ExportRegistry::kLargestKept;
    if (worth && !hasOwnPages(unused->base_, unused->mapped_))
      ExportRegistry::get().keep(std::move(unused));
  });
  ExportRegistry::get().insert(*lent);
  return lent;
}

void ExportedBlock::populate() noexcept {
  if (!populated_.exchange(true, std::memory_order_relaxed))
    ::madvise(base_, mapped_, MADV_POPULATE_READ);
}

ExportedBlock::Cache::Cache() { ExportRegistry::get().addKeeper(); }

ExportedBlock::Cache::~Cache() { ExportRegistry::get().removeKeeper(); }

void ExportedBlock::Cache::tick(std::chrono::steady_clock::time_point now) {
  ExportRegistry::get().dropKept(now - kKeptFor);
}

}  // namespace weft::transport
