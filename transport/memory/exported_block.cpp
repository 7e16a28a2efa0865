#include "transport/memory/exported_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <mutex>
#include <utility>

#include "transport/base/os/system_error.h"
#include "transport/memory/export_registry.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

constexpr std::chrono::seconds kKeptFor{2};

// Kernels from 6.1 to 6.10 may lack the bit for "of a file" where pages are huge (Linux
// 3f9f022e975d): such memory would be copied each time it is sent. It gets small pages there.
std::atomic<bool> huge_are_told{true};

std::atomic<std::uint64_t> bytes_sent{0};

std::uint64_t pageOf(std::uint64_t offset) { return offset / pageBytes() * pageBytes(); }

Result<std::byte*> mapNew(int fd, std::size_t bytes) {
  void* const base = mapAligned(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  if (base == MAP_FAILED) return systemError("mapping shared memory", errno);
  auto* const data = static_cast<std::byte*>(base);
  if (huge_are_told.load(std::memory_order_relaxed)) makeHuge(data, bytes);
  if (Error error = obtainMemory(fd, 0, data, bytes)) {
    ::munmap(base, bytes);
    return error;
  }
  if (bytes >= kMemoryChunk && hasOwnPages(data, 1)) huge_are_told.store(false);
  return data;
}

}  // namespace

// --- unused mappings ---

ExportedBlock::Cache::Cache() {
  Registry& all = Registry::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  ++all.caches;
}

ExportedBlock::Cache::~Cache() {
  std::deque<Registry::Kept> gone;
  Registry& all = Registry::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.caches;
  gone = all.takeExcess();
}

void ExportedBlock::Cache::tick(std::chrono::steady_clock::time_point now) {
  std::deque<Registry::Kept> gone;
  Registry& all = Registry::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  gone = all.takeExcess(now - kKeptFor);
}

// --- one block ---

ExportedBlock::ExportedBlock(std::shared_ptr<const ExportedFile> file, std::byte* base,
                             std::size_t mapped, std::uint64_t offset, std::size_t size,
                             State state)
    : file_(std::move(file)),
      memory_(file_->memory),
      base_(base),
      mapped_(mapped),
      offset_(offset),
      data_(base + (offset - pageOf(offset))),
      size_(size),
      own_(state == State::kShared),
      state_(state) {}

Result<std::shared_ptr<ExportedBlock>> ExportedBlock::create(std::size_t bytes) {
  const std::size_t mapped = roundUp(std::max<std::size_t>(bytes, 1), pageBytes());
  Registry& all = Registry::get();
  if (Error error = all.reserve(mapped)) return error;
  Result<UniqueFd> fd = makeMemory("weft-export", mapped, kSizeSeals);
  const Result<std::byte*> base =
      fd.ok() ? mapNew(fd.value().get(), mapped) : Result<std::byte*>(fd.error());
  if (!base.ok()) {
    all.unreserve(mapped);
    return base.error();
  }
  auto file =
      std::make_shared<const ExportedFile>(std::move(fd).value(), SealedMemory{mapped, 0, 0});
  std::shared_ptr<ExportedBlock> block(
      new ExportedBlock(std::move(file), base.value(), mapped, 0, bytes, State::kShared));
  all.insert(*block);
  return block;
}

Result<std::shared_ptr<ExportedBlock>> ExportedBlock::open(
    const std::shared_ptr<const ExportedFile>& file, std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t bytes = file->memory.bytes;
  if (size == 0 || offset >= bytes || size > bytes - offset)
    return protocolError("a buffer outside of exported memory");
  Registry& all = Registry::get();
  std::unique_ptr<ExportedBlock> block = all.reuse(file->memory, offset, size);
  if (block == nullptr && all.count.load() >= Registry::kMostMappings) {
    return Error(ErrorCode::kSystem,
                 std::to_string(all.count.load()) +
                     " blocks of exported memory are mapped here, which is the limit");
  }
  if (block == nullptr) {
    const std::uint64_t first = pageOf(offset);
    const std::size_t mapped = roundUp(offset - first + size, pageBytes());
    void* const base =
        mapAligned(mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE, file->fd.get(), first);
    if (base == MAP_FAILED) return systemError("mapping a peer's exported memory", errno);
    block.reset(new ExportedBlock(file, static_cast<std::byte*>(base), mapped, offset, size,
                                  State::kFrozen));
    // Where too many files are open the descriptor goes: it is only needed to forward a block.
    if (ExportedFile::count.load() > Registry::mostFiles()) block->file_ = nullptr;
  }
  std::shared_ptr<ExportedBlock> lent(block.release(), [](ExportedBlock* raw) {
    std::unique_ptr<ExportedBlock> unused(raw);
    Registry::get().erase(*unused);
    const bool worth = unused->mapped_ <= Registry::kMostKeptBytes / 2;
    if (worth && !hasOwnPages(unused->base_, unused->mapped_))
      Registry::get().keep(std::move(unused));
  });
  all.insert(*lent);
  return lent;
}

std::shared_ptr<ExportedBlock> ExportedBlock::find(const std::byte* data, std::size_t size) {
  Registry& all = Registry::get();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto next = all.blocks.upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (next == all.blocks.begin()) return nullptr;
  ExportedBlock& block = *(--next)->second;
  if (data < block.data() || size > block.size() ||
      static_cast<std::size_t>(data - block.data()) > block.size() - size) {
    return nullptr;
  }
  return block.weak_from_this().lock();  // null: its last user is going
}

ExportedBlock::~ExportedBlock() {
  if (own_) {
    Registry::get().erase(*this);
    Registry::get().unreserve(mapped_);
  }
  ::munmap(base_, mapped_);
}

// With the registry's lock.
void ExportedBlock::freezeLocked() noexcept {
  if (state_ != State::kShared) return;
  // In one step: no thread finds the address without memory.
  const bool frozen = ::mmap(base_, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd(),
                             0) != MAP_FAILED &&
                      ::fcntl(fd(), F_ADD_SEALS, ExportedFile::kContentSeals) == 0;
  state_ = frozen ? State::kFrozen : State::kUnfit;
}

std::optional<std::uint64_t> ExportedBlock::offer(const std::byte* data, std::size_t size) {
  {
    const std::lock_guard<std::mutex> lock(Registry::get().mutex);
    freezeLocked();
    if (state_ != State::kFrozen || file_ == nullptr) return std::nullopt;
  }
  if (hasOwnPages(data, size)) return std::nullopt;
  bytes_sent.fetch_add(size, std::memory_order_relaxed);
  return offset_ + static_cast<std::uint64_t>(data - data_);
}

OwnedBuffer ExportedBlock::offered(std::uint64_t offset, std::size_t size) const {
  const std::uint64_t first = pageOf(offset);
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
  Registry& all = Registry::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Stats stats = all.held;
  stats.bytes_sent = bytes_sent.load(std::memory_order_relaxed);
  return stats;
}

void ExportedBlock::populate() noexcept {
  if (!populated_.exchange(true, std::memory_order_relaxed))
    ::madvise(base_, mapped_, MADV_POPULATE_READ);
}

}  // namespace weft::transport
