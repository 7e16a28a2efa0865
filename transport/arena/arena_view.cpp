#include "transport/arena/arena_view.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

Error checkMemory(const ArenaOffer& offer, int fd) {
  const Result<SealedMemory> memory = sealedMemory(fd, F_SEAL_SHRINK);
  if (!memory.ok()) return memory.error();
  if (memory.value().bytes != offer.file_bytes) {
    return protocolError("the shared memory it offers has " + std::to_string(memory.value().bytes) +
                         " bytes instead of " + std::to_string(offer.file_bytes));
  }
  return Error::ok();
}

}  // namespace

// Keeps one block from being reused.
class ArenaView::Lease {
 public:
  Lease(std::shared_ptr<ArenaView> view, std::uint32_t slot)
      : view_(std::move(view)), slot_(slot) {}
  ~Lease() {
    if (!view_->fork_guard_.inOwnProcess()) return;
    // Release: all use of the bytes is over before the sender sees this.
    view_->slot(slot_).store(kSlotFree, std::memory_order_release);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<ArenaView> view_;
  const std::uint32_t slot_;
};

Result<std::shared_ptr<ArenaView>> ArenaView::open(const ArenaOffer& offer, const UniqueFd& fd,
                                                   std::uint64_t max_bytes) {
  if (offer.slot_count == 0 || offer.slot_count > kArenaMaxSlots) {
    return protocolError("it offers shared memory with " + std::to_string(offer.slot_count) +
                         " slots");
  }
  if (offer.file_bytes <= kArenaDataOffset)
    return protocolError("it offers shared memory without room");
  if (offer.file_bytes > max_bytes) {
    return Error(ErrorCode::kLimitExceeded, "it offers " + std::to_string(offer.file_bytes) +
                                                " bytes of shared memory, the limit here is " +
                                                std::to_string(max_bytes));
  }
  if (Error error = checkMemory(offer, fd.get())) return error;
  void* base = mapAligned(offer.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return systemError("mapping a peer's shared memory", errno);
  std::shared_ptr<ArenaView> view(new ArenaView(static_cast<std::byte*>(base), offer));
  if (std::memcmp(base, offer.magic.data(), offer.magic.size()) != 0) {
    return Error(ErrorCode::kSystem, "its shared memory does not show here what it holds there");
  }
  return view;
}

ArenaView::ArenaView(std::byte* base, const ArenaOffer& offer)
    : base_(base),
      file_bytes_(offer.file_bytes),
      slot_count_(offer.slot_count),
      magic_(offer.magic) {}

ArenaView::~ArenaView() { ::munmap(base_, file_bytes_); }

ArenaSlot& ArenaView::slot(std::uint32_t index) const noexcept {
  return *std::launder(
      reinterpret_cast<ArenaSlot*>(base_ + kArenaSlotsOffset + std::size_t{4} * index));
}

Result<OwnedBuffer> ArenaView::lend(const ArenaDescriptor& block, std::uint64_t size) {
  if (block.slot >= slot_count_) {
    return protocolError("a buffer in slot " + std::to_string(block.slot) + " of " +
                         std::to_string(slot_count_) + " in shared memory");
  }
  if (block.offset < kArenaDataOffset || block.offset >= file_bytes_ || size == 0 ||
      size > file_bytes_ - block.offset) {
    return protocolError("a buffer outside of shared memory");
  }
  if (block.offset % kArenaAlignment != 0)
    return protocolError("a misaligned buffer in shared memory");
  std::uint32_t state = kSlotOffered;
  if (!slot(block.slot).compare_exchange_strong(state, kSlotTaken, std::memory_order_acq_rel)) {
    return protocolError("a buffer in shared memory that is not on offer");
  }
  return OwnedBuffer{base_ + block.offset, static_cast<std::size_t>(size),
                     std::make_shared<Lease>(shared_from_this(), block.slot)};
}

}  // namespace weft::transport
