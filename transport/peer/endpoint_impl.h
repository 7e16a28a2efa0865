// EndpointImpl: the Endpoint of endpoint.h. Owns the loops, the peers, and who lets them in; opens
// and closes all of it.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/fork_guard.h"
#include "transport/connect/acceptor.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/io/event_loop.h"
#include "transport/memory/exported_block.h"
#include "transport/peer/admission.h"
#include "transport/peer/peer_table.h"

namespace weft::transport {

class EndpointImpl final : public Endpoint {
 public:
  static Result<std::unique_ptr<EndpointImpl>> open(EndpointOptions options,
                                                    EndpointHandler& handler);
  ~EndpointImpl() override { close(std::chrono::milliseconds(2000)); }

  const std::string& address() const override { return address_; }
  Error addPeer(const PeerInfo& peer) override;
  void setPeerAddress(std::int32_t rank, const std::string& address) override;
  void removePeer(std::int32_t rank) override;
  void losePeer(std::int32_t rank, Error reason) override;
  Error send(std::int32_t to, Message message, std::chrono::milliseconds wait) override;
  void runAfter(std::chrono::milliseconds delay, std::function<void()> task) override;
  bool onLoopThread() const noexcept override { return loop_->inLoop(); }
  EndpointStats stats() const override;
  void close(std::chrono::milliseconds linger) override;

 private:
  enum class Phase : std::uint8_t { kOpen, kClosing, kClosed };
  using Listening = std::vector<std::pair<UniqueFd, const char*>>;

  EndpointImpl(EndpointOptions options, EndpointHandler& handler, Identity self,
               std::unique_ptr<EventLoop> loop, std::string address);
  static Result<Listening> listen(const EndpointOptions& options, Address& address);
  void postAddress(std::int32_t rank);

  // Loop thread.
  void start(Listening&& listening);
  void tick();
  void beginClose(std::chrono::milliseconds linger);
  void endCloseIfFinished();

  const EndpointOptions options_;
  const Identity self_;
  const std::string address_;
  const ForkGuard fork_guard_;  // a forked child must not touch the thread it does not have
  std::unique_ptr<EventLoop> loop_;
  LazyEventLoop bulk_loop_{"weft-bulk"};  // its first user is loop_'s thread; stopped after it
  SessionNumbers sessions_;               // loop thread
  EndpointContext context_;
  PeerTable peers_;
  Admission admission_;
  Acceptor acceptor_;
  std::atomic<Phase> phase_{Phase::kOpen};
  std::mutex close_mutex_;

  // Loop thread.
  std::optional<ExportedBlock::Cache> export_cache_;
  std::unique_ptr<EventLoop::Timer> ticker_;
  std::chrono::milliseconds tick_period_{};
  EventLoop::Clock::time_point last_tick_{};
  std::unique_ptr<EventLoop::Timer> linger_timer_;
  enum class Closing : std::uint8_t { kNo, kBegun, kReported } closing_ = Closing::kNo;
  std::promise<void> all_finished_;
};

}  // namespace weft::transport
