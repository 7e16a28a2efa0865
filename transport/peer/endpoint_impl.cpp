// The Endpoint of endpoint.h. It owns the loops, the peers and their Admission, and opens and
// closes all of them.
#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/check.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/peer_name.h"
#include "transport/connect/acceptor.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/io/address.h"
#include "transport/io/event_loop.h"
#include "transport/io/socket.h"
#include "transport/io/timer.h"
#include "transport/memory/exported_block.h"
#include "transport/peer/admission.h"
#include "transport/peer/endpoint_identity.h"
#include "transport/peer/fork_safe_endpoint.h"
#include "transport/peer/peer_table.h"
#include "transport/peer/reunion.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRemoveLinger{2000};

class EndpointImpl final : public Endpoint {
 public:
  static Result<std::unique_ptr<EndpointImpl>> open(EndpointOptions options,
                                                    EndpointHandler& handler);
  ~EndpointImpl() override { close(milliseconds(2000)); }

  const std::string& address() const override { return address_; }
  Error addPeer(const PeerInfo& peer) override;
  void setPeerAddress(std::int32_t rank, const std::string& address) override;
  void removePeer(std::int32_t rank) override;
  void losePeer(std::int32_t rank, Error reason) override;
  Error send(std::int32_t to, Message message, milliseconds wait) override;
  void runAfter(milliseconds delay, std::function<void()> task) override;
  bool onLoopThread() const noexcept override { return loop_->inLoop(); }
  Driven drive(Driver kind, const std::function<bool()>& done, Deadline deadline,
               AdaptiveSpin& spin) override {
    return loop_->drive(kind, done, deadline, spin);
  }
  void wakeDriver(Driver kind) override { loop_->wakeDriver(kind); }
  EndpointStats stats() const override;
  void close(milliseconds linger) override;

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
  void beginClose(milliseconds linger);
  void endCloseIfFinished();

  const EndpointOptions options_;
  const Identity self_;
  const std::string address_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<EventLoop> bulk_loop_;  // made on loop_'s thread; stopped after it
  SessionNumbers sessions_;               // loop thread
  SpareDescriptor spare_;                 // loop thread
  EndpointContext context_;
  PeerTable peers_;
  Admission admission_;
  Reunion reunion_;
  Acceptor acceptor_;
  std::atomic<Phase> phase_{Phase::kOpen};
  std::mutex close_mutex_;

  // Loop thread.
  std::optional<ExportedBlock::Cache> export_cache_;
  std::unique_ptr<Timer> ticker_;
  milliseconds tick_period_{};
  EventLoop::Clock::time_point last_tick_{};
  std::unique_ptr<Timer> linger_timer_;  // not null: close() waits for the peers
  std::promise<void> all_finished_;
};

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(EndpointOptions options,
                                                   EndpointHandler& handler) {
  Result<std::unique_ptr<EndpointImpl>> made = EndpointImpl::open(std::move(options), handler);
  if (!made.ok()) return made.error();
  return std::unique_ptr<Endpoint>(std::make_unique<ForkSafeEndpoint>(std::move(made).value()));
}

Result<std::unique_ptr<EndpointImpl>> EndpointImpl::open(EndpointOptions options,
                                                         EndpointHandler& handler) {
  Result<Identity> self = makeIdentity(options);
  if (!self.ok()) return self.error();
  Address address;
  Result<Listening> listening = listen(options, address);
  if (!listening.ok()) return listening.error();
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create("weft-loop");
  if (!loop.ok()) return loop.error();
  std::unique_ptr<EndpointImpl> made(
      new EndpointImpl(std::move(options), handler, std::move(self).value(),
                       std::move(loop).value(), formatAddress(address)));
  auto sockets = std::make_shared<Listening>(std::move(listening).value());
  made->loop_->post([impl = made.get(), sockets] { impl->start(std::move(*sockets)); });
  return made;
}

Result<EndpointImpl::Listening> EndpointImpl::listen(const EndpointOptions& options,
                                                     Address& address) {
  Listening listening;
  address.host = hostIdentity();
  if (options.tcp) {
    Result<BoundSocket> bound = listenTcp(options.listen_address);
    if (!bound.ok()) return bound.error();
    address.tcp_host = options.listen_address;
    address.tcp_port = bound.value().port;
    listening.emplace_back(std::move(bound.value().fd), "tcp");
  }
  if (options.unix_socket) {
    std::array<std::uint8_t, 8> random{};
    if (Error error = fillRandom(random)) return error;
    address.unix_name = "weft-" + toHex(random);
    Result<BoundSocket> bound = listenUnix(address.unix_name);
    if (!bound.ok()) return bound.error();
    listening.emplace_back(std::move(bound.value().fd), "unix");
  }
  return listening;
}

EndpointImpl::EndpointImpl(EndpointOptions options, EndpointHandler& handler, Identity self,
                           std::unique_ptr<EventLoop> loop, std::string address)
    : options_(std::move(options)),
      self_(std::move(self)),
      address_(std::move(address)),
      loop_(std::move(loop)),
      context_{*loop_, options_, self_, hostIdentity(), handler, sessions_, bulk_loop_, spare_},
      peers_([this](const PeerInfo& info) {
        return std::make_shared<Peer>(context_, info, [this, rank = info.rank] {
          peers_.dropFinished();
          reunion_.begin(rank);
          endCloseIfFinished();
        });
      }),
      admission_(context_, peers_, [this](std::int32_t rank) { reunion_.end(rank); }),
      reunion_(context_, peers_,
               [this](AuthenticatedPeer who) { admission_.reunite(std::move(who)); }),
      acceptor_(
          context_, admission_, [this](std::int32_t rank) { return peers_.address(rank); },
          [this](AuthenticatedPeer who) { admission_.onHandshakeDone(std::move(who)); }) {}

// --- any thread ---

Error EndpointImpl::addPeer(const PeerInfo& info) {
  if (Error error = checkName(info.name)) return error;
  const std::string who = describePeer(info.name, info.rank);
  if (info.rank < 0) return invalidArgument("rank must not be negative: " + who);
  if (info.rank == self_.rank) {
    return invalidArgument("rank " + std::to_string(info.rank) + " is this worker itself, '" +
                           self_.name + "'; it cannot be its own peer");
  }
  if (Result<Address> address = parseAddress(info.address); !address.ok())
    return invalidArgument("the address of " + who + ": " + address.error().text());
  Result<PeerTable::Added> added = peers_.add(info);
  if (!added.ok()) return added.error();
  if (added.value().peer == nullptr) return Error::ok();
  if (added.value().is_new) {
    loop_->post([this, peer = added.value().peer] { admission_.connectPending(peer); });
  } else {
    postAddress(info.rank);
  }
  return Error::ok();
}

void EndpointImpl::setPeerAddress(std::int32_t rank, const std::string& address) {
  peers_.setAddress(rank, address);
  postAddress(rank);
}

// The task takes the table's address, not the caller's, because the tasks of two callers may run in
// either order.
void EndpointImpl::postAddress(std::int32_t rank) {
  loop_->post([this, rank] {
    if (const std::shared_ptr<Peer> peer = peers_.find(rank))
      peer->setAddress(peers_.address(rank));
  });
}

void EndpointImpl::removePeer(std::int32_t rank) {
  const std::shared_ptr<Peer> peer = peers_.remove(rank);
  if (peer == nullptr) return;
  loop_->post([this, peer] {
    peer->closeGracefully();
    loop_->runAfter(kRemoveLinger, [peer] { peer->closeNow(); });
  });
}

void EndpointImpl::losePeer(std::int32_t rank, Error reason) {
  const std::shared_ptr<Peer> peer = peers_.find(rank);
  if (peer == nullptr || phase_.load() != Phase::kOpen) return;  // close() cuts all
  loop_->post([peer, reason = std::move(reason)]() mutable { peer->fail(std::move(reason)); });
}

Error EndpointImpl::send(std::int32_t to, Message message, milliseconds wait) {
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) {
    return {ErrorCode::kShutdown,
            "cannot send to rank " + std::to_string(to) + ": this endpoint is shutting down"};
  }
  const std::shared_ptr<Peer> peer = peers_.find(to);
  if (peer != nullptr) return peer->send(std::move(message), wait);
  if (to == self_.rank) {
    return invalidArgument("rank " + std::to_string(to) +
                           " is this worker itself; the transport does not send to itself");
  }
  return {ErrorCode::kUnknownPeer, "no worker of rank " + std::to_string(to) +
                                       " is known here: it has not joined, or was removed"};
}

void EndpointImpl::runAfter(milliseconds delay, std::function<void()> task) {
  if (loop_->inLoop()) return loop_->runAfter(delay, std::move(task));
  loop_->post(
      [this, delay, task = std::move(task)]() mutable { loop_->runAfter(delay, std::move(task)); });
}

EndpointStats EndpointImpl::stats() const {
  EndpointStats stats;
  acceptor_.counts(stats);
  stats.peers = peers_.stats();
  return stats;
}

// --- loop thread ---

void EndpointImpl::start(Listening&& listening) {
  for (auto& [fd, transport_name] : listening)
    acceptor_.listen(std::move(fd), transport_name);
  tick_period_ = std::clamp(std::min(options_.heartbeat_interval, options_.peer_timeout) / 2,
                            milliseconds(5), milliseconds(1000));
  last_tick_ = EventLoop::Clock::now();
  spare_.refill();
  export_cache_.emplace();
  ticker_ = std::make_unique<Timer>(*loop_, [this] { tick(); });
  ticker_->start(tick_period_, tick_period_);
}

void EndpointImpl::tick() {
  const auto now = EventLoop::Clock::now();
  const auto late = std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(0),
                                                       now - last_tick_ - tick_period_);
  last_tick_ = now;
  spare_.refill();
  for (const std::shared_ptr<Peer>& peer : peers_.all())
    peer->tick(now, late);
  admission_.tick(now);
  ExportedBlock::Cache::tick(now);
  if (options_.receive_pool != nullptr) options_.receive_pool->tick(now);
}

// --- closing ---

void EndpointImpl::close(milliseconds linger) {
  const std::lock_guard<std::mutex> only_one(close_mutex_);
  if (phase_.load() == Phase::kClosed) return;
  WEFT_CHECK(!loop_->inLoop(), "close() would wait for its own thread");
  peers_.close();
  phase_.store(Phase::kClosing);
  loop_->post([this, linger] { beginClose(linger); });
  all_finished_.get_future().wait();
  loop_->stop();
  if (bulk_loop_ != nullptr) {
    // What the bulk connections have posted ends their watches. A thread that sends may still hold
    // one of them, which would keep its watch beyond the loop.
    std::promise<void> all_cut;
    bulk_loop_->post([&] { all_cut.set_value(); });
    all_cut.get_future().wait();
    bulk_loop_->stop();
  }
  phase_.store(Phase::kClosed);
}

void EndpointImpl::beginClose(milliseconds linger) {
  acceptor_.stop();
  admission_.close();
  reunion_.stop();
  for (const std::shared_ptr<Peer>& peer : peers_.all())
    peer->closeGracefully();
  linger_timer_ = std::make_unique<Timer>(*loop_, [this] {
    for (const std::shared_ptr<Peer>& peer : peers_.all())
      peer->closeNow();
  });
  linger_timer_->start(linger);
  endCloseIfFinished();
}

void EndpointImpl::endCloseIfFinished() {
  if (linger_timer_ == nullptr || !peers_.allFinished()) return;
  ticker_.reset();
  linger_timer_.reset();
  export_cache_.reset();
  all_finished_.set_value();
}

}  // namespace weft::transport
