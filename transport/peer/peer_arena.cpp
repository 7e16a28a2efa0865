// Peer: shared memory for large buffers, offered and taken.
#include <algorithm>
#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/memory/exported_block.h"
#include "transport/peer/peer.h"

namespace weft::transport {

void Peer::offerArena() {
  if (state_ != PeerState::kConnected) return;
  if (std::string_view(link_->stream().transportName()) != "unix") return arena_out_.close();
  if (!arena_out_.wanted() || arena_offered_) return;
  if (std::shared_ptr<SharedArena> arena = arena_out_.offer()) {
    arena_offered_ = true;
    outbox_.control(OutFrame::arenaOffer(std::move(arena)));
    flush();
  }
}

Error Peer::onArenaFrame(FrameKind kind, std::span<const std::byte> body) {
  switch (kind) {
    case FrameKind::kArenaOffer:
      return takeArena(ArenaOffer::decode(std::span<const std::byte, ArenaOffer::kBytes>(body)));
    case FrameKind::kArenaAccept:
      return arena_out_.accepted();
    case FrameKind::kArenaRefuse:
      log(LogLevel::kInfo, describe() +
                               " takes no shared memory; large buffers go to it through "
                               "the socket");
      return arena_out_.refused();
    default:
      return FrameSink::onArenaFrame(kind, body);
  }
}

Error Peer::takeArena(const ArenaOffer& offer) {
  const Stream::ReceivedFd received = link_->stream().takeFd();
  if (std::exchange(arena_seen_, true) || (arena_in_ != nullptr && !arena_in_->isOf(offer))) {
    return {ErrorCode::kProtocol, "it offers shared memory twice"};
  }
  const ArenaOptions& options = context_.options.arena;
  Error problem = Error::ok();
  if (!received.fd.valid() && !received.lost) {
    return {ErrorCode::kProtocol, "it offers shared memory, but no descriptor came with the offer"};
  }
  if (arena_in_ != nullptr) {
    // It does not know yet: the answer was lost with a link.
  } else if (!options.enabled) {
    problem = {ErrorCode::kInvalidArgument, "shared memory is switched off here"};
  } else if (received.lost) {
    problem = {ErrorCode::kSystem, "too many files are open here to take its shared memory"};
  } else {
    Result<std::shared_ptr<ArenaView>> view =
        ArenaView::open(offer, received.fd, options.max_peer_bytes);
    if (view.ok()) {
      arena_in_ = std::move(view).value();
    } else {
      problem = view.error();
    }
  }
  if (problem.code() == ErrorCode::kProtocol) return problem;
  if (problem && logEnabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo,
        "large buffers of " + describe() + " come through the socket: " + problem.text());
  }
  outbox_.control(problem ? FrameKind::kArenaRefuse : FrameKind::kArenaAccept);
  // Not from here: this is inside the reading of the link, which a broken write would read on.
  context_.loop.post([self = shared_from_this()] { self->onWorkAvailable(); });
  return Error::ok();
}

Result<OwnedBuffer> Peer::arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) {
  if (arena_in_ == nullptr) return FrameSink::arenaBuffer(block, size);
  // A link may break within a frame whose blocks were taken already; then it comes again.
  const auto before = std::find_if(
      arena_taken_.begin(), arena_taken_.end(),
      [&](const Taken& taken) { return taken.where == block && taken.buffer.size == size; });
  if (before != arena_taken_.end()) {
    arena_taking_.push_back(std::move(*before));
    arena_taken_.erase(before);
    return arena_taking_.back().buffer;
  }
  Result<OwnedBuffer> buffer = arena_in_->lend(block, size);
  if (buffer.ok()) {
    arena_bytes_received_.fetch_add(size, std::memory_order_relaxed);
    arena_taking_.push_back({block, buffer.value()});
  }
  return buffer;
}

Result<OwnedBuffer> Peer::exportedBuffer(const ArenaDescriptor& place, std::uint64_t size) {
  if (!context_.options.arena.enabled) return FrameSink::exportedBuffer(place, size);
  if (place.slot == exported_fds_.size()) {
    Stream::ReceivedFd received = link_->stream().takeFd();
    if (received.lost) {
      return Error(ErrorCode::kSystem, "too many files are open here to take its exported memory");
    }
    if (!received.fd.valid()) {
      return Error(ErrorCode::kProtocol,
                   "a buffer in exported memory, but no descriptor came with it");
    }
    exported_fds_.push_back(std::move(received.fd));
  } else if (place.slot > exported_fds_.size()) {
    return Error(ErrorCode::kProtocol,
                 "a buffer in exported memory number " + std::to_string(place.slot) +
                     ", of which " + std::to_string(exported_fds_.size()) + " have been named");
  }
  Result<std::shared_ptr<ExportedBlock>> block =
      ExportedBlock::open(exported_fds_[place.slot], place.offset, size);
  if (!block.ok()) return block.error();
  arena_bytes_received_.fetch_add(size, std::memory_order_relaxed);
  std::byte* const data = block.value()->data();
  return OwnedBuffer{data, static_cast<std::size_t>(size), std::move(block).value()};
}

}  // namespace weft::transport
