#include "transport/arena/arena_placement.h"

#include <algorithm>
#include <utility>

#include "transport/io/stream.h"

namespace weft::transport {

ArenaPlacement& ArenaPlacement::operator=(ArenaPlacement&& other) noexcept {
  letGo();
  arena_ = std::move(other.arena_);
  blocks_ = other.blocks_;
  entries_ = std::move(other.entries_);
  fds_ = std::move(other.fds_);
  return *this;
}

bool ArenaPlacement::addExported(std::uint32_t buffer, const OwnedBuffer& bytes,
                                 const std::shared_ptr<ExportedBlock>& block) {
  const auto known = std::find(fds_.begin(), fds_.end(), block->fd());
  if (known == fds_.end() && fds_.size() == kMaxFds) return false;
  const std::optional<std::uint64_t> offset = block->offer(bytes.data, bytes.size);
  if (!offset) return false;
  const auto index = static_cast<std::uint32_t>(known - fds_.begin());
  if (known == fds_.end()) fds_.push_back(block->fd());
  entries_.push_back({buffer, {*offset, index, 0}, block});
  return true;
}

void ArenaPlacement::dropExported() noexcept {
  std::erase_if(entries_, [](const Entry& entry) { return entry.exported != nullptr; });
  fds_.clear();
}

void ArenaPlacement::handOver() noexcept {
  if (arena_ == nullptr || blocks_ != Blocks::kOurs) return;
  for (const Entry& entry : entries_) {
    if (!entry.exported) arena_->handOver(entry.where);
  }
  blocks_ = Blocks::kHandedOver;
}

OwnedBuffer ArenaPlacement::bytes(const Entry& entry, std::uint64_t size) const {
  if (entry.exported) {
    return entry.exported->offered(entry.where.offset, static_cast<std::size_t>(size));
  }
  return {arena_->bytes(entry.where), static_cast<std::size_t>(size), arena_};
}

void ArenaPlacement::takeBack() noexcept {
  blocks_ = blocks_ == Blocks::kOurs ? Blocks::kOursInline : Blocks::kTakenBack;
}

void ArenaPlacement::letGo() noexcept {
  if (arena_ == nullptr) return;
  for (const Entry& entry : entries_) {
    if (entry.exported) continue;
    if (blocks_ == Blocks::kOurs || blocks_ == Blocks::kOursInline) arena_->giveBack(entry.where);
    if (blocks_ == Blocks::kTakenBack) arena_->withdraw(entry.where);
  }
}

}  // namespace weft::transport
