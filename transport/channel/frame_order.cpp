#include "transport/channel/frame_order.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace weft::transport {
namespace {

constexpr std::uint64_t kLeastToSplit = 2 * kBulkUnit;
// Often enough that a sender does not wait for room until the receiver's next tick, rarely enough
// to cost nothing.
constexpr std::uint64_t kAskBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kAskFrames = 512;

}  // namespace

FrameOrder::FrameOrder(Session& session, std::uint64_t max_queued_bytes, bool replay) noexcept
    : session_(session), replay_(replay), ask_bytes_(std::min(kAskBytes, max_queued_bytes / 8)) {}

void FrameOrder::attach(const Stream& stream) noexcept {
  inline_only_ = std::string_view(stream.transportName()) == "tcp";
}

void FrameOrder::setBulkConnection(std::shared_ptr<BulkConnection> bulk,
                                   std::uint64_t threshold) noexcept {
  bulk_ = std::move(bulk);
  bulk_threshold_ = std::max(threshold, kLeastToSplit);
}

std::shared_ptr<BulkConnection> FrameOrder::take(OutFrame& frame) {
  const bool data = frame.kind() == FrameKind::kData;
  if (data && inline_only_) frame.bringInline(OutFrame::Inline::kAll);
  // Pushed in the order of the numbers, because the bulk connection's bytes do not say to which
  // frame they belong.
  const bool split = data && bulk_ != nullptr && frame.carried() >= bulk_threshold_;
  if (split) {
    auto half = frame.split();
    bulk_->push(std::move(half), frame.filling(), frame.bulkBegin());
  }
  // Nothing throws from here on: a number without its frame would end the session.
  if (data) ++last_;
  const std::uint64_t ack = session_.received();
  session_.noteAckSent(ack);
  std::uint16_t flags = data && asksForAck(frame) ? FrameHead::kAckNow : std::uint16_t{0};
  if (split) flags |= FrameHead::kSplit;
  frame.seal(last_, ack, flags);
  return split ? bulk_ : nullptr;
}

bool FrameOrder::asksForAck(const OutFrame& frame) noexcept {
  if (!replay_) return false;
  unasked_bytes_ += frame.size();
  ++unasked_frames_;
  if (unasked_bytes_ < ask_bytes_ && unasked_frames_ < kAskFrames)
    return frame.wantedBack() && frame.ownsBuffers();
  unasked_bytes_ = 0;
  unasked_frames_ = 0;
  return true;
}

}  // namespace weft::transport
