#include "transport/channel/shared_memory_path.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/memory/exported_block.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

// Larger arenas of peers are refused; also those of more than a quarter of this machine's memory.
constexpr std::uint64_t kMaxPeerBytes = std::uint64_t{64} << 30;

}  // namespace

SharedMemoryPath::SharedMemoryPath(EventLoop& loop, const ArenaOptions& options, Outbox& outbox,
                                   std::string peer, std::function<void()> on_work_available)
    : options_(options),
      outbox_(outbox),
      peer_(std::move(peer)),
      on_work_available_(std::move(on_work_available)),
      sender_(options, on_work_available_,
              [&loop](const std::shared_ptr<SharedCopy>& copy) { helpCopy(loop, copy); }) {}

void SharedMemoryPath::attach(Stream& stream) {
  stream_ = &stream;
  stream.acceptFds();
  offer_sent_ = false;
  offer_received_ = false;
  // For good: a frame that goes on over TCP withdraws its blocks only when it is acknowledged, and
  // the receiver may have freed them before. Another message must not have taken them meanwhile.
  if (std::string_view(stream.transportName()) != "unix") sender_.close();
}

void SharedMemoryPath::detach() {
  stream_ = nullptr;
  std::move(lent_.begin(), lent_.end(), std::back_inserter(lent_before_));
  lent_.clear();
  exported_files_.clear();
}

void SharedMemoryPath::offer() {
  if (!sender_.wanted() || offer_sent_) return;
  if (std::shared_ptr<SharedArena> arena = sender_.offer()) {
    offer_sent_ = true;
    outbox_.control(OutFrame::arenaOffer(std::move(arena)));
  }
}

void SharedMemoryPath::onDataFrame() {
  exported_files_.clear();
  lent_before_.clear();
  lent_.clear();
}

void SharedMemoryPath::close() {
  sender_.close();
  view_.reset();
  onDataFrame();
}

Error SharedMemoryPath::onArenaFrame(FrameKind kind, std::span<const std::byte> body) {
  switch (kind) {
    case FrameKind::kArenaOffer:
      return onOffer(ArenaOffer::decode(body.first<ArenaOffer::kBytes>()));
    case FrameKind::kArenaAccept:
      return sender_.answered(true);
    case FrameKind::kArenaRefuse:
      log(LogLevel::kInfo,
          peer_ + " refuses shared memory; large buffers go to it through the socket");
      return sender_.answered(false);
    default:
      return protocolError("a frame that is not about shared memory");
  }
}

Error SharedMemoryPath::onOffer(const ArenaOffer& offer) {
  const Stream::ReceivedFd received = stream_->takeFd();
  if (std::exchange(offer_received_, true) || (view_ != nullptr && !view_->isOf(offer)))
    return protocolError("it offers shared memory twice");
  if (!received.fd.valid() && !received.lost)
    return protocolError("it offers shared memory without a descriptor");
  // The peer offers a mapped arena again if the answer was lost with a link.
  Error problem = view_ != nullptr ? Error::ok() : map(offer, received);
  if (problem.code() == ErrorCode::kProtocol) return problem;
  if (problem && logEnabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo,
        "large buffers from " + peer_ + " come through the socket: " + problem.text());
  }
  outbox_.control(problem ? FrameKind::kArenaRefuse : FrameKind::kArenaAccept);
  // Not flushed here: this runs while the link reads, and a failed write would read on.
  on_work_available_();
  return Error::ok();
}

Error SharedMemoryPath::map(const ArenaOffer& offer, const Stream::ReceivedFd& received) {
  if (!options_.enabled) return invalidArgument("shared memory is switched off here");
  if (received.lost)
    return {ErrorCode::kSystem, "too many files are open here to map its shared memory"};
  Result<std::shared_ptr<ArenaView>> view =
      ArenaView::open(offer, received.fd, atMostQuarter(kMaxPeerBytes));
  if (!view.ok()) return view.error();
  view_ = std::move(view).value();
  if (logEnabled(LogLevel::kDebug))
    log(LogLevel::kDebug, "large buffers from " + peer_ + " come through its shared memory");
  return Error::ok();
}

Result<OwnedBuffer> SharedMemoryPath::arenaBuffer(const ArenaDescriptor& block,
                                                  std::uint64_t size) {
  if (view_ == nullptr) return protocolError("a buffer in shared memory that was not offered");
  // The frame comes again if a link broke within it after its blocks were lent.
  const auto before = std::find_if(lent_before_.begin(), lent_before_.end(), [&](const Lent& lent) {
    return lent.where == block && lent.buffer.size == size;
  });
  if (before != lent_before_.end()) {
    lent_.push_back(std::move(*before));
    lent_before_.erase(before);
    return lent_.back().buffer;
  }
  Result<OwnedBuffer> buffer = view_->lend(block, size);
  if (buffer.ok()) {
    bytes_received_.fetch_add(size, std::memory_order_relaxed);
    lent_.push_back({block, buffer.value()});
  }
  return buffer;
}

Result<OwnedBuffer> SharedMemoryPath::exportedBuffer(const ArenaDescriptor& place,
                                                     std::uint64_t size) {
  if (!options_.enabled)
    return protocolError("a buffer in exported memory, which is not used here");
  if (place.slot == exported_files_.size()) {
    Stream::ReceivedFd received = stream_->takeFd();
    if (received.lost)
      return Error(ErrorCode::kSystem, "too many files are open here to map its exported memory");
    if (!received.fd.valid())
      return protocolError("a buffer in exported memory without a descriptor");
    Result<std::shared_ptr<const ExportedFile>> file = ExportedFile::open(std::move(received.fd));
    if (!file.ok()) return file.error();
    exported_files_.push_back(std::move(file).value());
  } else if (place.slot > exported_files_.size()) {
    return protocolError("a buffer in exported memory number " + std::to_string(place.slot) +
                         ", but only " + std::to_string(exported_files_.size()) +
                         " were sent before");
  }
  if (const std::size_t mapped = mapped_->load(); mapped >= options_.max_peer_mappings) {
    return Error(ErrorCode::kSystem,
                 std::to_string(mapped) +
                     " buffers of its exported memory are in use here, which is the limit");
  }
  Result<std::shared_ptr<ExportedBlock>> block =
      ExportedBlock::open(exported_files_[place.slot], place.offset, size);
  if (!block.ok()) return block.error();
  bytes_received_.fetch_add(size, std::memory_order_relaxed);
  std::byte* const data = block.value()->data();
  mapped_->fetch_add(1);
  std::shared_ptr<void> owner(
      data, [block = std::move(block).value(), mapped = mapped_](void*) { mapped->fetch_sub(1); });
  return OwnedBuffer{data, static_cast<std::size_t>(size), std::move(owner)};
}

}  // namespace weft::transport
