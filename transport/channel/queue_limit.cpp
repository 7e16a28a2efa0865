#include "transport/channel/queue_limit.h"

#include "transport/base/interruption.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kLeastFrameBytes = FrameHead::kBytes;

}  // namespace

// A message that finds the queue empty goes, however large it is. Unacknowledged bytes below the
// ack threshold do not delay an oversized message.
bool QueueLimit::hasRoom(std::uint64_t size) const noexcept {
  if (lifted_) return true;
  const std::uint64_t limit = limits_.max_queued_bytes;
  const std::uint64_t held = heldBytes();
  if (held == 0 || held + size <= limit) return true;
  return queue_.unwrittenBytes() == 0 && size > limit - limit / 8 && held <= limit / 8;
}

Error QueueLimit::await(std::unique_lock<std::mutex>& lock, std::uint64_t size,
                        std::chrono::milliseconds patience, std::optional<Deadline>& until) {
  if (hasRoom(size)) return Error::ok();
  if (!until) until = deadlineAfter(patience);
  Waited waited = Waited::kLate;
  if (patience.count() > 0) {
    ++waiting_;
    waited = waitInterruptibly(room_, lock, *until, [&] { return hasRoom(size); });
    --waiting_;
  }
  if (waited == Waited::kDone) return Error::ok();
  const std::string what = "sending " + std::to_string(size) + " bytes to " + peer_;
  if (waited == Waited::kInterrupted) {
    return {ErrorCode::kInterrupted, what + " was interrupted while it waited for room"};
  }
  return {ErrorCode::kTimeout,
          resourceExhausted(what + " found no room for " + std::to_string(patience.count()) +
                            " ms: " + std::to_string(heldBytes()) +
                            " bytes are queued to it, and it reads too slowly or is not connected; "
                            "send less at once")};
}

bool QueueLimit::isOverrun(const OutFrame& frame) const noexcept {
  return !frame.ownsBuffers() && queue_.heldFrames() > limits_.max_queued_bytes / kLeastFrameBytes;
}

Error QueueLimit::overrun() const {
  return {ErrorCode::kLimitExceeded, "it does not read: " + std::to_string(queue_.heldFrames()) +
                                         " messages wait for it, most of them answers"};
}

}  // namespace weft::transport
