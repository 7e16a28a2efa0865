#include "transport/peer/endpoint_impl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/secure_random.h"
#include "transport/io/address.h"
#include "transport/io/host_identity.h"
#include "transport/io/socket.h"

namespace weft::transport {
namespace {

constexpr std::chrono::milliseconds kRemoveLinger{2000};

Error invalid(std::string text) { return {ErrorCode::kInvalidArgument, std::move(text)}; }

Error checkName(const std::string& name) {
  if (name.empty() || name.size() > Hello::kMaxName || name.find('\0') != std::string::npos) {
    return invalid("a worker's name has 1 to 128 bytes, none of them zero; this one has " +
                   std::to_string(name.size()));
  }
  return Error::ok();
}

Error checkOptions(const EndpointOptions& options) {
  using std::chrono::milliseconds;
  if (Error error = checkName(options.name)) return error;
  if (options.rank < 0)
    return invalid("a rank is 0 or more, this one is " + std::to_string(options.rank));
  if (!options.key.valid())
    return invalid("an endpoint needs an authentication key (AuthKey::random() or a key file)");
  if (!options.tcp && !options.unix_socket)
    return invalid("an endpoint needs TCP or Unix sockets, both are switched off");
  const milliseconds zero(0);
  if (options.handshake_timeout <= zero || options.connect_timeout <= zero ||
      options.heartbeat_interval <= zero || options.peer_timeout <= zero ||
      options.reconnect_timeout < zero) {
    return invalid(
        "timeouts and the heartbeat interval must be more than 0 ms (reconnect_timeout may be 0)");
  }
  if (options.peer_timeout < 2 * options.heartbeat_interval) {
    return invalid("peer_timeout (" + seconds(options.peer_timeout) +
                   ") must be at least twice heartbeat_interval (" +
                   seconds(options.heartbeat_interval) +
                   "), else a peer that is well would be lost");
  }
  return Error::ok();
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(EndpointOptions options,
                                                   EndpointHandler& handler) {
  Result<std::unique_ptr<EndpointImpl>> made = EndpointImpl::open(std::move(options), handler);
  if (!made.ok()) return made.error();
  return std::unique_ptr<Endpoint>(std::move(made).value());
}

Result<std::unique_ptr<EndpointImpl>> EndpointImpl::open(EndpointOptions options,
                                                         EndpointHandler& handler) {
  if (Error error = checkOptions(options)) return error;

  std::array<std::uint8_t, 16> random{};
  if (Error error = fillRandom(random)) return error;
  Identity self;
  self.name = options.name;
  self.rank = options.rank;
  self.group = sha256(options.group_id);
  self.key = options.key;
  std::memcpy(&self.incarnation, random.data(), sizeof(self.incarnation));

  Address address;
  address.host = hostIdentity();
  std::vector<std::pair<UniqueFd, const char*>> listening;
  if (options.tcp) {
    Result<BoundSocket> bound = listenTcp(options.listen_address);
    if (!bound.ok()) return bound.error();
    address.tcp_host = options.listen_address;
    address.tcp_port = bound.value().port;
    listening.emplace_back(std::move(bound.value().fd), "tcp");
  }
  if (options.unix_socket) {
    address.unix_name = "weft-" + toHex(std::span(random).subspan(8));
    Result<BoundSocket> bound = listenUnix(address.unix_name);
    if (!bound.ok()) return bound.error();
    listening.emplace_back(std::move(bound.value().fd), "unix");
  }
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::create("weft-loop");
  if (!loop.ok()) return loop.error();

  std::unique_ptr<EndpointImpl> self_ptr(
      new EndpointImpl(std::move(options), handler, std::move(self), std::move(loop).value()));
  self_ptr->address_ = formatAddress(address);
  auto shared =
      std::make_shared<std::vector<std::pair<UniqueFd, const char*>>>(std::move(listening));
  self_ptr->loop_->post([impl = self_ptr.get(), shared] { impl->start(std::move(*shared)); });
  return self_ptr;
}

EndpointImpl::EndpointImpl(EndpointOptions options, EndpointHandler& handler, Identity self,
                           std::unique_ptr<EventLoop> loop)
    : options_(std::move(options)),
      handler_(handler),
      self_(std::move(self)),
      process_(::getpid()),
      loop_(std::move(loop)),
      context_{*loop_,
               options_,
               self_,
               hostIdentity(),
               handler_,
               [this] { onPeerFinished(); },
               [this](std::int32_t rank) { return sessionOf(rank); },
               [this](std::int32_t rank, std::uint64_t own) {
                 const auto found = sessions_.find(rank);
                 if (found != sessions_.end() && found->second == own) sessions_.erase(found);
               },
               [this] { return bulkLoop(); }},
      acceptor_(*loop_, options_, self_,
                {[this](const Hello& hello, const SessionClaim& theirs, SessionClaim& ours) {
                   return admit(hello, theirs, ours);
                 },
                 [this](AuthenticatedPeer who) { admitted(std::move(who)); }}) {}

EndpointImpl::~EndpointImpl() { close(std::chrono::milliseconds(2000)); }

std::shared_ptr<Peer> EndpointImpl::find(std::int32_t rank) const {
  const std::shared_lock<std::shared_mutex> lock(peers_mutex_);
  const auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : found->second.peer;
}

Error EndpointImpl::addPeer(const PeerInfo& info) {
  if (Error error = checkName(info.name)) return error;
  const std::string who = describePeer(info.name, info.rank);
  if (info.rank < 0) return invalid("a rank is 0 or more: " + who);
  if (info.rank == self_.rank) {
    return invalid("rank " + std::to_string(info.rank) + " is this worker itself, '" + self_.name +
                   "'; it cannot be its own peer");
  }
  if (Result<Address> address = parseAddress(info.address); !address.ok()) {
    return invalid("the address of " + who + ": " + address.error().text());
  }
  std::shared_ptr<Peer> peer;
  std::shared_ptr<Peer> joined;
  std::shared_ptr<Peer> replaced;  // let go outside the lock
  {
    const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
    if (phase_.load() != Phase::kOpen)
      return {ErrorCode::kShutdown, "cannot add " + who + ": this endpoint is shutting down"};
    Entry& entry = peers_[info.rank];
    if (entry.peer != nullptr) {
      const bool same_name = entry.peer->name() == info.name;
      if (same_name && entry.address == info.address) return Error::ok();
      if (same_name && entry.address.empty() && !entry.peer->lossTold()) {
        // It joined by itself before its address was known here.
        entry.address = info.address;
        joined = entry.peer;
      } else if (!entry.peer->lossTold()) {
        return invalid(
            "cannot add " + who + ": rank " + std::to_string(info.rank) + " is " +
            describePeer(entry.peer->name(), info.rank) +
            (same_name ? " under another address" : "") +
            ", which is not lost; remove it first, or give each worker a rank of its own");
      }
      if (joined == nullptr) replaced = std::move(entry.peer);
    }
    if (joined == nullptr) {
      entry.address = info.address;
      entry.peer = peer = Peer::make(context_, info);
    }
  }
  if (joined != nullptr) {
    loop_->post([joined, address = info.address] { joined->setAddress(address); });
  } else {
    loop_->post([this, peer] { claimHeld(peer); });
  }
  return Error::ok();
}

void EndpointImpl::setPeerAddress(std::int32_t rank, const std::string& address) {
  const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
  const auto found = peers_.find(rank);
  if (found == peers_.end() || found->second.peer == nullptr) return;
  found->second.address = address;
  loop_->post([peer = found->second.peer, address] { peer->setAddress(address); });
}

void EndpointImpl::removePeer(std::int32_t rank) {
  std::shared_ptr<Peer> peer;
  {
    const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
    const auto found = peers_.find(rank);
    // close() takes leave of all.
    if (found == peers_.end() || phase_.load() != Phase::kOpen) return;
    peer = std::move(found->second.peer);
    peers_.erase(found);
    leaving_.push_back(peer);
  }
  loop_->post([this, peer] {
    peer->leave();
    loop_->runAfter(kRemoveLinger, [peer] { peer->abandon(); });
  });
}

void EndpointImpl::losePeer(std::int32_t rank, Error reason) {
  const std::shared_ptr<Peer> peer = find(rank);
  if (peer == nullptr || phase_.load() != Phase::kOpen) return;  // close() cuts all
  loop_->post([peer, reason = std::move(reason)] { peer->lose(reason); });
}

Error EndpointImpl::send(std::int32_t to, Message message, std::chrono::milliseconds wait) {
  if (phase_.load(std::memory_order_relaxed) != Phase::kOpen) {
    return {ErrorCode::kShutdown,
            "cannot send to rank " + std::to_string(to) + ": this endpoint is shutting down"};
  }
  const std::shared_ptr<Peer> peer = find(to);
  if (peer == nullptr) {
    if (to == self_.rank)
      return invalid("rank " + std::to_string(to) +
                     " is this worker itself; the transport does not send to itself");
    return {ErrorCode::kUnknownPeer, "no worker of rank " + std::to_string(to) +
                                         " is known here; it has not joined, or was removed"};
  }
  return peer->send(std::move(message), wait);
}

void EndpointImpl::runAfter(std::chrono::milliseconds delay, std::function<void()> task) {
  if (loop_->inLoop()) return loop_->runAfter(delay, std::move(task));
  loop_->post(
      [this, delay, task = std::move(task)]() mutable { loop_->runAfter(delay, std::move(task)); });
}

EndpointStats EndpointImpl::stats() const {
  EndpointStats stats;
  acceptor_.counts(stats);
  std::vector<std::shared_ptr<Peer>> known;
  {
    const std::shared_lock<std::shared_mutex> lock(peers_mutex_);
    known.reserve(peers_.size());
    for (const auto& [rank, entry] : peers_)
      known.push_back(entry.peer);
  }
  stats.peers.reserve(known.size());
  for (const std::shared_ptr<Peer>& peer : known)
    stats.peers.push_back(peer->stats());
  std::sort(stats.peers.begin(), stats.peers.end(),
            [](const PeerStats& a, const PeerStats& b) { return a.rank < b.rank; });
  return stats;
}

// --- loop thread ---

void EndpointImpl::start(std::vector<std::pair<UniqueFd, const char*>>&& listening) {
  for (auto& [fd, transport_name] : listening)
    acceptor_.listen(std::move(fd), transport_name);
  using std::chrono::milliseconds;
  tick_period_ = std::clamp(std::min(options_.heartbeat_interval, options_.peer_timeout) / 2,
                            milliseconds(5), milliseconds(1000));
  last_tick_ = EventLoop::Clock::now();
  export_cache_.emplace();
  ticker_ = std::make_unique<EventLoop::Timer>(*loop_, [this] { tick(); });
  ticker_->start(tick_period_, tick_period_);
}

EventLoop* EndpointImpl::bulkLoop() {
  if (bulk_loop_ == nullptr) {
    Result<std::unique_ptr<EventLoop>> made =
        EventLoop::create("weft-bulk", EventLoop::Idle::kSleep);
    if (!made.ok()) {
      log(LogLevel::kWarning, made.error().text());
      return nullptr;
    }
    bulk_loop_ = std::move(made).value();
  }
  return bulk_loop_.get();
}

void EndpointImpl::tick() {
  const auto now = EventLoop::Clock::now();
  const auto late = std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(0),
                                                       now - last_tick_ - tick_period_);
  last_tick_ = now;
  for (const std::shared_ptr<Peer>& peer : allPeers()) {
    peer->tick(now, late);
  }
  tickHeld(now);
  ExportedBlock::Cache::tick(now);
  if (options_.receive_pool != nullptr) options_.receive_pool->tick(now);
}

std::vector<std::shared_ptr<Peer>> EndpointImpl::allPeers() const {
  const std::shared_lock<std::shared_mutex> lock(peers_mutex_);
  std::vector<std::shared_ptr<Peer>> all = leaving_;
  all.reserve(all.size() + peers_.size());
  for (const auto& [rank, entry] : peers_)
    all.push_back(entry.peer);
  return all;
}

void EndpointImpl::onPeerFinished() {
  std::vector<std::shared_ptr<Peer>> done;  // let go outside the lock
  {
    const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
    const auto rest =
        std::partition(leaving_.begin(), leaving_.end(),
                       [](const std::shared_ptr<Peer>& peer) { return !peer->finished(); });
    std::move(rest, leaving_.end(), std::back_inserter(done));
    leaving_.erase(rest, leaving_.end());
  }
  if (closing_) endClose();
}

// --- closing ---

void EndpointImpl::close(std::chrono::milliseconds linger) {
  const std::lock_guard<std::mutex> only_one(close_mutex_);
  if (phase_.load() == Phase::kClosed) return;
  if (::getpid() != process_) {
    loop_->abandonAfterFork();
    if (bulk_loop_ != nullptr) bulk_loop_->abandonAfterFork();
    phase_.store(Phase::kClosed);
    return;
  }
  WEFT_CHECK(!loop_->inLoop(), "close() would wait for its own thread");
  {
    // From here on no peer is added.
    const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
    phase_.store(Phase::kClosing);
  }
  loop_->post([this, linger] { beginClose(linger); });
  all_finished_.get_future().wait();
  loop_->stop();
  if (bulk_loop_ != nullptr) bulk_loop_->stop();
  phase_.store(Phase::kClosed);
}

void EndpointImpl::beginClose(std::chrono::milliseconds linger) {
  closing_ = true;
  acceptor_.stop();
  held_.clear();
  for (const std::shared_ptr<Peer>& peer : allPeers())
    peer->leave();
  linger_timer_ = std::make_unique<EventLoop::Timer>(*loop_, [this] {
    for (const std::shared_ptr<Peer>& peer : allPeers())
      peer->abandon();
  });
  linger_timer_->start(linger);
  endClose();
}

void EndpointImpl::endClose() {
  if (close_reported_) return;
  for (const std::shared_ptr<Peer>& peer : allPeers()) {
    if (!peer->finished()) return;
  }
  close_reported_ = true;
  ticker_.reset();
  linger_timer_.reset();
  export_cache_.reset();
  all_finished_.set_value();
}

}  // namespace weft::transport
