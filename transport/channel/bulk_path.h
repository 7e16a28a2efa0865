// BulkPath: makes the bulk connection of a link once large messages are sent or received, and reads
// from it.
//
// The side that dialled the link also dials the bulk connection, because only that side certainly
// has a way to the other. If the bulk connection breaks, the link is given up with it, and the
// session sends the messages again whole.
//
// Threads: noteMessage() and counts(): any; the rest: the loop thread.
// Failure: if a bulk connection cannot be made, messages go over the link, and the next link tries
// again. If the attempt broke the link, no other attempt is made.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/bulk/bulk_connection.h"
#include "transport/channel/outbox.h"
#include "transport/connect/connector.h"
#include "transport/frame/frame_handlers.h"
#include "transport/session/session.h"

namespace weft::transport {

// Which side dialled a connection.
enum class Dialler : std::uint8_t { kPeer, kSelf };

class BulkPath final : public BulkHandler {
 public:
  struct Events {
    std::function<void()> on_wanted;   // any thread: connect() is due on the loop thread
    std::function<void()> on_arrived;  // the half of a message that the link waits for is here
    std::function<void(std::string how)> on_broken;
  };
  BulkPath(const EndpointContext& context, const PeerInfo& peer, const Session& session,
           Outbox& outbox, Events events);

  // A message with so many bytes of buffers is sent or received.
  void noteMessage(std::uint64_t bytes) {
    if (bytes >= context_.options.bulk.threshold) noteLarge();
  }
  const BulkCounts& counts() const noexcept { return *counts_; }

  // A link is up.
  void attach(const Stream& link, Dialler dialler, std::uint64_t incarnation);
  // It is gone, or given up.
  void detach();
  // Dials if a bulk connection is wanted and this side dials. Its callbacks do nothing once `owner`
  // is gone.
  void connect(const std::weak_ptr<void>& owner);
  // Whether the peer may dial a bulk connection for the link that is up.
  bool admits(const Hello& hello, const SessionClaim& theirs) const;
  void adopt(std::shared_ptr<Stream> stream, const std::weak_ptr<void>& owner);
  // Whether nothing waits to be written.
  bool written() const noexcept { return bulk_ == nullptr || bulk_->written(); }
  // As BulkConnection's; 0: there is none.
  std::uint64_t bytesCame() const noexcept { return bulk_ == nullptr ? 0 : bulk_->bytesCame(); }
  void readNow() const {
    if (bulk_ != nullptr) bulk_->readNow();
  }
  // Makes no other bulk connection, because this one brought nothing for long.
  void disable() noexcept { attempts_ = Attempts::kOver; }

 private:
  enum class Attempts : std::uint8_t {
    kAllowed,
    kWithNextLink,  // one failed: messages go over this link alone
    kOver,          // one broke a link, or brought nothing for long: never again
  };

  Error readFromBulk(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) override;
  bool bulkArrived() override { return bulk_ != nullptr && bulk_->arrived(); }

  void noteLarge();
  bool mayHave() const noexcept;
  void onConnected(Connector::Outcome outcome, const std::weak_ptr<void>& owner);
  void cannotBeMade(const std::string& why);

  const EndpointContext& context_;
  const PeerInfo& peer_;
  const Session& session_;
  Outbox& outbox_;
  const Events events_;
  std::atomic<bool> wanted_{false};  // a large message was sent, or came
  const std::shared_ptr<BulkCounts> counts_ = std::make_shared<BulkCounts>();

  bool over_tcp_ = false;  // a link is up that may have a bulk connection
  Dialler dialler_ = Dialler::kPeer;
  std::uint64_t incarnation_ = 0;  // of the peer at the link's other end
  std::unique_ptr<Connector> connector_;
  std::shared_ptr<BulkConnection> bulk_;
  // What to read from the bulk connection once it is dialled.
  struct Early {
    std::vector<iovec> into;
    std::shared_ptr<Arrivals> arrivals;
  };
  std::optional<Early> early_;
  Attempts attempts_ = Attempts::kAllowed;
};

}  // namespace weft::transport
