// Peer: shared memory for large buffers, offered and taken.
#include <string_view>

#include "transport/log.h"
#include "transport/peer.h"

namespace weft::transport {

void Peer::offerArena() {
  if (state_ != PeerState::kConnected) return;
  if (std::string_view(link_->stream().transportName()) != "unix") return arena_out_.close();
  if (!arena_out_.wanted()) return;
  if (std::shared_ptr<SharedArena> arena = arena_out_.offer()) {
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
  if (arena_in_ != nullptr) return {ErrorCode::kProtocol, "it offers shared memory twice"};
  const Stream::ReceivedFd received = link_->stream().takeFd();
  const ArenaOptions& options = context_.options.arena;
  Error problem = Error::ok();
  if (!received.fd.valid() && !received.lost) {
    return {ErrorCode::kProtocol, "it offers shared memory, but no descriptor came with the offer"};
  }
  if (!options.enabled) {
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
  context_.loop.post([self = shared_from_this()] { self->attention(); });
  return Error::ok();
}

Result<OwnedBuffer> Peer::arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) {
  if (arena_in_ == nullptr) return FrameSink::arenaBuffer(block, size);
  arena_bytes_received_.fetch_add(size, std::memory_order_relaxed);
  return arena_in_->lend(block, size);
}

}  // namespace weft::transport
