// The Endpoint behind endpoint.h: the registry of peers, admission of those that dial in, and
// opening and closing of the whole.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/endpoint.h"
#include "transport/io/event_loop.h"
#include "transport/memory/exported_block.h"
#include "transport/peer/acceptor.h"
#include "transport/peer/peer.h"

namespace weft::transport {

class EndpointImpl final : public Endpoint {
 public:
  static Result<std::unique_ptr<EndpointImpl>> open(EndpointOptions options,
                                                    EndpointHandler& handler);
  ~EndpointImpl() override;

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
  struct Entry {
    std::string address;
    std::shared_ptr<Peer> peer;
  };
  // An authenticated connection of a rank that addPeer() has not named yet.
  struct PendingPeer {
    AuthenticatedPeer who;
    EventLoop::Clock::time_point until;
    EventLoop::Clock::time_point heartbeat_at;
  };
  enum class Phase : std::uint8_t { kOpen, kClosing, kClosed };

  EndpointImpl(EndpointOptions options, EndpointHandler& handler, Identity self,
               std::unique_ptr<EventLoop> loop);

  std::shared_ptr<Peer> find(std::int32_t rank) const;

  // endpoint_admission.cpp, loop thread: who may come in, and as whom.
  RefusalCode admit(const Hello& hello, const SessionClaim& theirs, SessionClaim& ours);
  RefusalCode admitBulkConnection(Peer* peer, const Hello& hello, const SessionClaim& theirs,
                                  SessionClaim& ours);
  RefusalCode admitTo(Peer& peer, const Hello& hello, const SessionClaim& theirs);
  void admitted(AuthenticatedPeer who);
  void join(AuthenticatedPeer who);
  void hold(AuthenticatedPeer who);
  void claimHeld(const std::shared_ptr<Peer>& peer);
  void tickHeld(EventLoop::Clock::time_point now);

  // This side's number for the session with a rank: the same for its Peer and for what is held.
  std::uint64_t sessionOf(std::int32_t rank);
  EventLoop* bulkLoop();

  // loop thread
  void start(std::vector<std::pair<UniqueFd, const char*>>&& listening);
  void tick();
  void beginClose(std::chrono::milliseconds linger);
  void onPeerFinished();
  void endClose();
  std::vector<std::shared_ptr<Peer>> allPeers() const;

  const EndpointOptions options_;
  EndpointHandler& handler_;
  const Identity self_;
  std::string address_;
  const int process_;  // a forked child must not touch the thread it does not have
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<EventLoop> bulk_loop_;  // made by loop_'s thread; stopped after it
  PeerContext context_;
  Acceptor acceptor_;

  mutable std::shared_mutex peers_mutex_;
  std::unordered_map<std::int32_t, Entry> peers_;  // guarded by peers_mutex_
  std::vector<std::shared_ptr<Peer>> leaving_;     // guarded too: removed, not yet finished
  std::atomic<Phase> phase_{Phase::kOpen};
  std::mutex close_mutex_;

  // loop thread
  std::unordered_map<std::int32_t, PendingPeer> held_;
  std::unordered_map<std::int32_t, std::uint64_t> sessions_;
  std::optional<ExportedBlock::Cache> export_cache_;
  std::unique_ptr<EventLoop::Timer> ticker_;
  std::chrono::milliseconds tick_period_{};
  EventLoop::Clock::time_point last_tick_{};
  std::unique_ptr<EventLoop::Timer> linger_timer_;
  bool closing_ = false;
  bool close_reported_ = false;
  std::promise<void> all_finished_;
};

}  // namespace weft::transport
