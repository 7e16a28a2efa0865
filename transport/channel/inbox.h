// Inbox: the receiving side of one peer, as the Outbox is its sending side. It takes the frames
// that the peer's links read, and gives their acks to the Outbox, their numbers to the Session, and
// their messages to the endpoint's handler.
//
// Threads: the loop thread; messages(): any. Ownership: it borrows all it is given.
// Failure: an Error ends the link. What the handler's onHeader(), onTooLarge() or onMessage()
// throws ends the peer's life; a message that onMessage() has seen counts as received and is not
// sent again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/channel/bulk_path.h"
#include "transport/channel/outbox.h"
#include "transport/channel/shared_memory_path.h"
#include "transport/endpoint.h"
#include "transport/frame/frame_handlers.h"
#include "transport/session/session.h"

namespace weft::transport {

class Inbox final : public MessageHandler {
 public:
  // `on_ack_asked`: the peer wants an ack (Session::ackAsked()). It must not write immediately.
  Inbox(EndpointHandler& handler, std::int32_t rank, Session& session, Outbox& outbox,
        SharedMemoryPath& shared_memory, BulkPath& bulk, std::function<void()> on_ack_asked);

  // How many have arrived.
  std::uint64_t messages() const noexcept { return messages_.load(std::memory_order_relaxed); }

 private:
  Error onFrameHead(const FrameHead& head) override;
  void onDataFrame(const FrameHead& head) override;
  Result<Disposition> onHeader(std::span<const std::byte> header,
                               std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override;
  std::shared_ptr<Arrivals> arrivals() override;
  Error onTooLarge(std::span<const std::byte> header, const Error& why) override;
  Error onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) override;

  EndpointHandler& handler_;
  const std::int32_t rank_;
  Session& session_;
  Outbox& outbox_;
  SharedMemoryPath& shared_memory_;
  BulkPath& bulk_;
  const std::function<void()> on_ack_asked_;
  std::uint64_t acked_ = 0;  // the last ack that came
  std::atomic<std::uint64_t> messages_{0};
};

}  // namespace weft::transport
