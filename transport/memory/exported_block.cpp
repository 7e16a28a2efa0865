#include "transport/memory/exported_block.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Not F_SEAL_WRITE, which looks at every page for users of it: 2 to 17 ms for 256 MiB. Without a
// shared mapping, which its maker has given up by then, this one means the same.
constexpr int kContentSeals = F_SEAL_FUTURE_WRITE;

// What is kept for a moment: mappings that no one uses.
constexpr std::chrono::seconds kKeptFor{2};
constexpr std::size_t kKeptBlocks = 64;
constexpr std::uint64_t kKeptBytes = std::uint64_t{1} << 30;

std::uint64_t mostBytes() { return machineBytes() / 2; }

std::size_t mostFds() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur / 4, 4096));
}

// Kernels from 6.1 to 6.10 may lack the third bit of what isPrivate() asks for where pages are huge
// (Linux 3f9f022e975d): such memory would be copied each time it is sent. Then it has small ones.
std::atomic<bool> huge_are_told{true};

// Kernel's Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped, 61 of a file or
// shared. A page that is neither present nor swapped has the file's content when it is touched.
bool isPrivate(std::uint64_t entry) noexcept {
  return (entry >> 62) != 0 && ((entry >> 61) & 1) == 0;
}

}  // namespace

struct ExportedBlock::Registry {
  std::atomic<std::size_t> count{0};  // of `blocks`: spares those who have none the lock
  std::mutex mutex;                   // guards what follows
  // By address: those made here, and those received that somebody uses.
  std::map<std::uintptr_t, ExportedBlock*> blocks;
  std::atomic<std::uint64_t> bytes_sent{0};
  std::uint64_t bytes = 0;  // of those made here
  std::uint64_t made = 0;   // how many those are
  std::size_t fds = 0;      // whoever counts one makes a File, which counts it off
  // Of what was received, by device and number.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<const File>> files;
  struct CachedBlock {
    std::unique_ptr<ExportedBlock> block;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<CachedBlock> kept;  // oldest first
  std::uint64_t kept_bytes = 0;
  int keepers = 0;

  // With the lock; the one there is at least.
  CachedBlock takeOldest() {
    CachedBlock oldest = std::move(kept.front());
    kept.pop_front();
    kept_bytes -= oldest.block->mapped_;
    return oldest;
  }
};

ExportedBlock::Registry& ExportedBlock::registry() {
  static Registry* const one = [] {  // never destroyed: tensors may outlive static objects
    auto* const made = new Registry;
    ::pthread_atfork(
        [] {
          Registry& all = registry();
          all.mutex.lock();
          for (const auto& [address, block] : all.blocks) {
            if (block->state_ == State::kShared) block->freeze();
          }
        },
        [] { registry().mutex.unlock(); }, [] { registry().mutex.unlock(); });
    return made;
  }();
  return *one;
}

ExportedBlock::File::File(UniqueFd own) : fd(std::move(own)) {}

ExportedBlock::File::~File() {
  if (!fd.valid()) return;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.fds;
}

ExportedBlock::ExportedBlock(std::shared_ptr<const File> file, std::byte* base, std::size_t mapped,
                             std::uint64_t file_offset, std::size_t skip, std::size_t size,
                             State state)
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
  Registry& all = registry();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (mapped > mostBytes() || all.bytes > mostBytes() - mapped) {
      return Error(ErrorCode::kLimitExceeded,
                   std::to_string(all.bytes) + " bytes of exported memory are in use here, and " +
                       std::to_string(mapped) + " more would exceed half of the machine's");
    }
    if (all.fds >= mostFds()) {
      return Error(ErrorCode::kLimitExceeded, std::to_string(all.fds) +
                                                  " exported blocks are in use here, a quarter "
                                                  "of the limit on open files");
    }
    all.bytes += mapped;
    ++all.made;
    ++all.fds;
  }
  const auto giveUp = [&](Error error) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.bytes -= mapped;
    --all.made;
    --all.fds;
    return error;
  };
  Result<UniqueFd> memory = makeMemory("weft-export", mapped);
  if (!memory.ok()) return giveUp(memory.error());
  UniqueFd fd = std::move(memory).value();
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return giveUp(systemError("sealing shared memory", errno));
  }
  void* const base = mapAligned(mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return giveUp(systemError("mapping shared memory", errno));
  auto* const bytes_there = static_cast<std::byte*>(base);
  if (huge_are_told.load(std::memory_order_relaxed)) makeHuge(bytes_there, mapped);
  // One call instead of a page fault for each 4 KiB; older kernels don't know it.
  if (::madvise(base, mapped, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const int error = errno;
    ::munmap(base, mapped);
    return giveUp(systemError("obtaining shared memory", error));
  }
  if (mapped >= kMemoryChunk && !untouched(bytes_there, 1)) huge_are_told.store(false);
  std::shared_ptr<ExportedBlock> block(
      new ExportedBlock(std::make_shared<const File>(std::move(fd)), bytes_there, mapped, 0, 0,
                        bytes, State::kShared));
  insert(*block);
  return block;
}

// A block is entered as long as it has users.
void ExportedBlock::insert(ExportedBlock& block) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks[reinterpret_cast<std::uintptr_t>(block.base_)] = &block;
  all.count.store(all.blocks.size(), std::memory_order_release);
}

void ExportedBlock::erase(ExportedBlock& block) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks.erase(reinterpret_cast<std::uintptr_t>(block.base_));
  all.count.store(all.blocks.size(), std::memory_order_release);
}

std::shared_ptr<ExportedBlock> ExportedBlock::find(const std::byte* data, std::size_t size) {
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto next = all.blocks.upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (next == all.blocks.begin()) return nullptr;
  ExportedBlock& block = *(--next)->second;
  if (data < block.data_ || size > block.size_ ||
      static_cast<std::size_t>(data - block.data_) > block.size_ - size) {
    return nullptr;
  }
  return block.weak_from_this().lock();  // null: its last user is going
}

ExportedBlock::~ExportedBlock() {
  Registry& all = registry();
  if (own_) erase(*this);
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (own_) {
      all.bytes -= mapped_;
      --all.made;
    }
  }
  ::munmap(base_, mapped_);
}

void ExportedBlock::freeze() noexcept {
  // In one step: no thread finds the address without memory.
  const bool frozen = ::mmap(base_, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd(),
                             0) != MAP_FAILED &&
                      ::fcntl(fd(), F_ADD_SEALS, kContentSeals) == 0;
  state_ = frozen ? State::kFrozen : State::kUnfit;
}

std::optional<std::uint64_t> ExportedBlock::offer(const std::byte* data, std::size_t size) {
  {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    if (state_ == State::kShared) freeze();
    if (state_ != State::kFrozen || !file_->fd.valid()) return std::nullopt;
  }
  if (!untouched(data, size)) return std::nullopt;
  return file_offset_ + static_cast<std::uint64_t>(data - base_);
}

bool ExportedBlock::untouched(const std::byte* data, std::size_t size) {
  // Opened each time: in a forked child an old one would show the parent's pages.
  const UniqueFd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map.valid()) return false;
  std::array<std::uint64_t, 4096> entries;
  const auto first = reinterpret_cast<std::uintptr_t>(data) / pageBytes();
  const auto end =
      roundUp(reinterpret_cast<std::uintptr_t>(data) + size, pageBytes()) / pageBytes();
  for (auto page = first; page < end;) {
    const std::size_t count = std::min<std::size_t>(entries.size(), end - page);
    const ssize_t got = ::pread(map.get(), entries.data(), count * sizeof(entries[0]),
                                static_cast<off_t>(page * sizeof(entries[0])));
    if (got <= 0) return false;
    const std::size_t read = static_cast<std::size_t>(got) / sizeof(entries[0]);
    if (read == 0 || std::any_of(entries.begin(), entries.begin() + read, isPrivate)) return false;
    page += read;
  }
  return true;
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
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return {all.bytes_sent.load(std::memory_order_relaxed), all.bytes, all.made};
}

void ExportedBlock::countSent(std::uint64_t bytes) noexcept {
  registry().bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
}

// --- received ---

Result<std::shared_ptr<ExportedBlock>> ExportedBlock::open(const UniqueFd& fd, std::uint64_t offset,
                                                           std::uint64_t size) {
  const Result<SealedMemory> found_memory = sealedMemory(fd.get(), F_SEAL_SHRINK | kContentSeals);
  if (!found_memory.ok()) return found_memory.error();
  const SealedMemory memory = found_memory.value();
  if (size == 0 || offset >= memory.bytes || size > memory.bytes - offset) {
    return Error(ErrorCode::kProtocol, "a buffer outside of exported memory");
  }
  const std::uint64_t first = offset / pageBytes() * pageBytes();
  const std::size_t skip = offset - first;
  std::unique_ptr<ExportedBlock> known;
  {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = std::find_if(all.kept.begin(), all.kept.end(), [&](const auto& kept) {
      const ExportedBlock& old = *kept.block;
      return old.device_ == memory.device && old.inode_ == memory.inode &&
             old.file_offset_ == first && old.data_ == old.base_ + skip && old.size_ == size;
    });
    if (found != all.kept.end()) {
      known = std::move(found->block);
      all.kept_bytes -= known->mapped_;
      all.kept.erase(found);
    }
  }
  if (known) return lend(std::move(known));
  const std::size_t mapped = roundUp(skip + size, pageBytes());
  void* const base = mapAligned(mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), first);
  if (base == MAP_FAILED) return systemError("mapping a peer's exported memory", errno);
  std::unique_ptr<ExportedBlock> block(new ExportedBlock(fileOf(fd, memory),
                                                         static_cast<std::byte*>(base), mapped,
                                                         first, skip, size, State::kFrozen));
  block->device_ = memory.device;
  block->inode_ = memory.inode;
  return lend(std::move(block));
}

// To send on what was received: no condition for having it.
std::shared_ptr<const ExportedBlock::File> ExportedBlock::fileOf(const UniqueFd& fd,
                                                                 const SealedMemory& memory) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.files, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const File>& known = all.files[{memory.device, memory.inode}];
  if (std::shared_ptr<const File> file = known.lock()) return file;
  UniqueFd own(all.fds < mostFds() ? ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (own.valid()) ++all.fds;
  auto file = std::make_shared<const File>(std::move(own));
  known = file;
  return file;
}

std::shared_ptr<ExportedBlock> ExportedBlock::lend(std::unique_ptr<ExportedBlock> block) {
  std::shared_ptr<ExportedBlock> lent(block.release(), [](ExportedBlock* raw) { takeBack(raw); });
  insert(*lent);
  return lent;
}

void ExportedBlock::takeBack(ExportedBlock* raw) {
  std::unique_ptr<ExportedBlock> block(raw);
  erase(*block);
  if (block->mapped_ > kKeptBytes / 2 || !block->untouched(block->base_, block->mapped_)) return;
  Registry& all = registry();
  std::vector<Registry::CachedBlock> gone;  // unmapped after the lock
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.keepers == 0) {
    gone.push_back({std::move(block), {}});
    return;
  }
  all.kept_bytes += block->mapped_;
  all.kept.push_back({std::move(block), std::chrono::steady_clock::now()});
  while (all.kept.size() > kKeptBlocks || all.kept_bytes > kKeptBytes)
    gone.push_back(all.takeOldest());
}

void ExportedBlock::populate() noexcept {
  if (!populated_.exchange(true, std::memory_order_relaxed))
    ::madvise(base_, mapped_, MADV_POPULATE_READ);
}

ExportedBlock::Cache::Cache() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  ++all.keepers;
}

ExportedBlock::Cache::~Cache() {
  {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (--all.keepers > 0) return;
  }
  forget(std::chrono::steady_clock::time_point::max());
}

void ExportedBlock::Cache::tick(std::chrono::steady_clock::time_point now) {
  forget(now - kKeptFor);
}

void ExportedBlock::forget(std::chrono::steady_clock::time_point before) {
  std::vector<Registry::CachedBlock> gone;  // unmapped after the lock
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  while (!all.kept.empty() && all.kept.front().since < before)
    gone.push_back(all.takeOldest());
}

}  // namespace weft::transport
