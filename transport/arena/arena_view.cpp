#include "transport/arena/arena_view.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "transport/base/os/system_error.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {

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
                                                " bytes of shared memory, and the limit here is " +
                                                std::to_string(max_bytes));
  }
  const Result<SealedMemory> memory = sealedMemory(fd.get(), F_SEAL_SHRINK);
  if (!memory.ok()) return memory.error();
  if (memory.value().bytes != offer.file_bytes) {
    return protocolError("the shared memory it offers has " + std::to_string(memory.value().bytes) +
                         " bytes instead of " + std::to_string(offer.file_bytes));
  }
  void* base = mapAligned(offer.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return systemError("mapping a peer's shared memory", errno);
  std::shared_ptr<ArenaView> view(new ArenaView(static_cast<std::byte*>(base), offer));
  if (std::memcmp(base, offer.magic.data(), offer.magic.size()) != 0) {
    return Error(ErrorCode::kSystem,
                 "its shared memory, mapped here, does not have the bytes that it wrote");
  }
  return view;
}

ArenaView::~ArenaView() { ::munmap(base_, offer_.file_bytes); }

Result<OwnedBuffer> ArenaView::lend(const ArenaDescriptor& block, std::uint64_t size) {
  if (block.slot >= offer_.slot_count) {
    return protocolError("a buffer in slot " + std::to_string(block.slot) + " of " +
                         std::to_string(offer_.slot_count) + " in shared memory");
  }
  if (block.offset < kArenaDataOffset || block.offset >= offer_.file_bytes || size == 0 ||
      size > offer_.file_bytes - block.offset) {
    return protocolError("a buffer outside of shared memory");
  }
  if (block.offset % kArenaAlignment != 0)
    return protocolError("a misaligned buffer in shared memory");
  ArenaSlot& slot = arenaSlot(base_, block.slot);
  std::uint32_t state = kSlotOffered;
  if (!slot.compare_exchange_strong(state, kSlotTaken, std::memory_order_acq_rel))
    return protocolError("a block of shared memory that was not offered");
  std::byte* const data = base_ + block.offset;
  std::shared_ptr<void> owner(data, [view = shared_from_this(), &slot](void*) {
    // Release: all use of the bytes is over before the sender sees this.
    if (view->fork_guard_.inOwnProcess()) slot.store(kSlotFree, std::memory_order_release);
  });
  return OwnedBuffer{data, static_cast<std::size_t>(size), std::move(owner)};
}

}  // namespace weft::transport
