#include "transport/memory/export_registry.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "transport/memory/exported_block.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMostKept = 64;
constexpr std::uint64_t kMostKeptBytes = 2 * ExportRegistry::kLargestKept;

std::uint64_t mostBytes() { return machineBytes() / 2; }

std::size_t mostFds() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur / 4, 4096));
}

}  // namespace

ExportRegistry& ExportRegistry::get() {
  static ExportRegistry* const one = [] {
    auto* const made = new ExportRegistry;
    ::pthread_atfork(
        freezeAll, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });
    return made;
  }();
  return *one;
}

// Leaves the lock to this thread until it has forked.
void ExportRegistry::freezeAll() {
  ExportRegistry& all = get();
  all.mutex_.lock();
  for (const auto& [address, block] : all.blocks_)
    block->freezeLocked();
}

ExportRegistry::File::~File() {
  if (!fd.valid()) return;
  ExportRegistry& all = get();
  const std::lock_guard<std::mutex> lock(all.mutex_);
  --all.fds_;
}

Error ExportRegistry::reserve(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > mostBytes() || held_.bytes > mostBytes() - bytes) {
    return {ErrorCode::kLimitExceeded,
            std::to_string(held_.bytes) + " bytes of exported memory are in use here, and " +
                std::to_string(bytes) + " more would exceed half of the machine's"};
  }
  if (fds_ >= mostFds()) {
    return {ErrorCode::kLimitExceeded,
            std::to_string(fds_) +
                " exported blocks are in use here, a quarter of the limit on open files"};
  }
  held_.bytes += bytes;
  ++held_.blocks;
  ++fds_;
  return Error::ok();
}

void ExportRegistry::unreserve(std::size_t bytes, bool with_descriptor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.bytes -= bytes;
  --held_.blocks;
  if (with_descriptor) --fds_;
}

ExportRegistry::Held ExportRegistry::held() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

void ExportRegistry::insert(ExportedBlock& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[block.address()] = &block;
  count_.store(blocks_.size(), std::memory_order_release);
}

void ExportRegistry::erase(const ExportedBlock& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.erase(block.address());
  count_.store(blocks_.size(), std::memory_order_release);
}

std::shared_ptr<ExportedBlock> ExportRegistry::find(const std::byte* data, std::size_t size) {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (next == blocks_.begin()) return nullptr;
  ExportedBlock& block = *(--next)->second;
  if (data < block.data() || size > block.size() ||
      static_cast<std::size_t>(data - block.data()) > block.size() - size) {
    return nullptr;
  }
  return block.weak_from_this().lock();  // null: its last user is going
}

std::shared_ptr<const ExportRegistry::File> ExportRegistry::fileOf(const UniqueFd& fd,
                                                                   const SealedMemory& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const File>& known = files_[{memory.device, memory.inode}];
  if (std::shared_ptr<const File> file = known.lock()) return file;
  UniqueFd own(fds_ < mostFds() ? ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (own.valid()) ++fds_;
  auto file = std::make_shared<const File>(std::move(own));
  known = file;
  return file;
}

// --- received blocks that nobody uses ---

ExportRegistry::Kept ExportRegistry::takeOldest() {
  Kept oldest = std::move(kept_.front());
  kept_.pop_front();
  kept_bytes_ -= oldest.block->mappedBytes();
  return oldest;
}

void ExportRegistry::keep(std::unique_ptr<ExportedBlock> block) {
  std::vector<Kept> gone;  // unmapped after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_bytes_ += block->mappedBytes();
  kept_.push_back({std::move(block), std::chrono::steady_clock::now()});
  while (!kept_.empty() &&
         (keepers_ == 0 || kept_.size() > kMostKept || kept_bytes_ > kMostKeptBytes)) {
    gone.push_back(takeOldest());
  }
}

std::unique_ptr<ExportedBlock> ExportRegistry::reuse(const SealedMemory& memory,
                                                     std::uint64_t offset, std::uint64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.block->isPart(memory, offset, size);
  });
  if (found == kept_.end()) return nullptr;
  std::unique_ptr<ExportedBlock> block = std::move(found->block);
  kept_bytes_ -= block->mappedBytes();
  kept_.erase(found);
  return block;
}

void ExportRegistry::addKeeper() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++keepers_;
}

void ExportRegistry::removeKeeper() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--keepers_ > 0) return;
  }
  dropKept(Time::max());
}

void ExportRegistry::dropKept(Time before) {
  std::vector<Kept> gone;  // unmapped after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!kept_.empty() && kept_.front().since < before)
    gone.push_back(takeOldest());
}

}  // namespace weft::transport
