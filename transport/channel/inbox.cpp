#include "transport/channel/inbox.h"

#include <string>
#include <utility>

#include "transport/base/thrown.h"

namespace weft::transport {
namespace {

Error notTaken(const std::string& thrown) {
  return protocolError("a message from it could not be taken (" + thrown + ")");
}

}  // namespace

Inbox::Inbox(EndpointHandler& handler, std::int32_t rank, Session& session, Outbox& outbox,
             SharedMemoryPath& shared_memory, BulkPath& bulk, std::function<void()> on_ack_asked)
    : handler_(handler),
      rank_(rank),
      session_(session),
      outbox_(outbox),
      shared_memory_(shared_memory),
      bulk_(bulk),
      on_ack_asked_(std::move(on_ack_asked)) {}

Error Inbox::onFrameHead(const FrameHead& head) {
  shared_memory_.onFrameHead();
  bulk_.noteMessage(head.buffer_bytes);
  if (head.ack <= acked_) return Error::ok();
  acked_ = head.ack;
  if (outbox_.acked(head.ack)) return Error::ok();
  return protocolError("it acknowledges message " + std::to_string(head.ack) + ", but only " +
                       std::to_string(outbox_.lastSequence()) + " were sent");
}

void Inbox::onDataFrame(const FrameHead& head) {
  shared_memory_.onDataFrame();
  const bool asked = (head.flags & FrameHead::kAckNow) != 0;
  // The ack is not written here: this runs while the link reads, and a failed write would read on;
  // besides, an answer may carry the ack first. The call may fail for lack of memory, so it comes
  // before the frame counts as received; then the peer sends the frame again.
  if (asked) on_ack_asked_();
  session_.took(head.sequence, asked);
}

Result<Disposition> Inbox::onHeader(std::span<const std::byte> header,
                                    std::span<const std::uint64_t> sizes,
                                    std::vector<OwnedBuffer>& buffers) {
  Disposition wanted = Disposition::kRefuse;
  const auto thrown = thrownBy([&] { wanted = handler_.onHeader(rank_, header, sizes, buffers); });
  if (thrown) return notTaken(*thrown);
  return wanted;
}

// If this fails for lack of memory, nobody is told of the bytes, and they come all the same.
std::shared_ptr<Arrivals> Inbox::arrivals() {
  std::shared_ptr<Arrivals> found;
  static_cast<void>(thrownBy([&] { found = handler_.arrivals(rank_); }));
  return found;
}

Error Inbox::onTooLarge(std::span<const std::byte> header, const Error& why) {
  const auto thrown = thrownBy([&] { handler_.onTooLarge(rank_, header, why); });
  return thrown ? notTaken(*thrown) : Error::ok();
}

Error Inbox::onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) {
  messages_.fetch_add(1, std::memory_order_relaxed);
  const auto thrown = thrownBy([&] { handler_.onMessage(rank_, header, std::move(buffers)); });
  return thrown ? notTaken(*thrown) : Error::ok();
}

}  // namespace weft::transport
