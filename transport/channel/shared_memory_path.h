// SharedMemoryPath: large buffers between this process and one peer of the same host, through
// memory that both map.
//
// Outgoing: it offers an arena of this process once on each link (ArenaSender), and sends exported
// blocks. Incoming: it maps the arena that the peer offers, and turns a frame's descriptors into
// buffers.
//
// Threads: place(), sent() and bytesReceived(): any; the rest: the loop thread.
// Failure: kProtocol ends the link. Memory that cannot be mapped here is refused; the buffers then
// come through the socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/arena/arena_sender.h"
#include "transport/arena/arena_view.h"
#include "transport/channel/outbox.h"
#include "transport/frame/frame_handlers.h"

namespace weft::transport {

class SharedMemoryPath final : public SharedMemoryHandler {
 public:
  // `on_work_available`: any thread; offer() or a flush is due on the loop thread. `peer` names the
  // peer in the log.
  SharedMemoryPath(EventLoop& loop, const ArenaOptions& options, Outbox& outbox, std::string peer,
                   std::function<void()> on_work_available);

  // Copies the large buffers into the arena, or exports them.
  ArenaPlacement place(const Message& message) {
    return sender_.place(message, outbox_.mayExport());
  }
  ArenaStats sent() const noexcept { return sender_.stats(); }
  std::uint64_t bytesReceived() const noexcept {
    return bytes_received_.load(std::memory_order_relaxed);
  }

  // A link is up; its stream stays until detach().
  void attach(Stream& stream);
  void detach();
  // Queues the offer of the arena, if one is wanted and this link has not carried it.
  void offer();
  void tick(std::chrono::steady_clock::time_point now) { sender_.tick(now); }
  // A frame begins. / A data frame is whole.
  void onFrameHead() { exported_files_.clear(); }
  void onDataFrame();
  // Places and resolves nothing any more.
  void close();

 private:
  struct Lent {
    ArenaDescriptor where;
    OwnedBuffer buffer;
  };

  Error onArenaFrame(FrameKind kind, std::span<const std::byte> body) override;
  Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) override;
  Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor& place, std::uint64_t size) override;
  Error onOffer(const ArenaOffer& offer);
  Error map(const ArenaOffer& offer, const Stream::ReceivedFd& received);

  const ArenaOptions& options_;
  Outbox& outbox_;
  const std::string peer_;
  const std::function<void()> on_work_available_;
  ArenaSender sender_;
  std::shared_ptr<ArenaView> view_;  // buffers lent out keep it alive, too
  std::vector<Lent> lent_;           // to the frame that is being read
  std::vector<Lent> lent_before_;    // to the same frame, over a link that broke within it
  // The files that came with the frame that is being read.
  std::vector<std::shared_ptr<const ExportedFile>> exported_files_;
  // How many buffers of exported memory are still in use here; they may outlive this.
  std::shared_ptr<std::atomic<std::size_t>> mapped_ = std::make_shared<std::atomic<std::size_t>>(0);
  Stream* stream_ = nullptr;     // null: no link
  bool offer_sent_ = false;      // on this link
  bool offer_received_ = false;  // on this link
  std::atomic<std::uint64_t> bytes_received_{0};
};

}  // namespace weft::transport
