// Proxy: sits between two endpoints and does to their connections what networks do: cuts them at
// any byte, swallows what is said, refuses new ones. Passes descriptors on (Unix sockets), so that
// shared memory works through it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "transport/base/os/unique_fd.h"
#include "transport/io/address.h"
#include "transport/io/socket.h"

namespace weft::transport {

class Proxy {
 public:
  // `target`: an endpoint's address. Over Unix sockets when it has one, unless `tcp`.
  explicit Proxy(const std::string& target, bool tcp = false)
      : target_(parseAddress(target).value()), unix_(target_.hasUnix() && !tcp) {
    address_ = target_;
    address_.tcp_host.clear();
    address_.unix_name.clear();
    if (unix_) {
      static std::atomic<int> count{0};
      address_.unix_name =
          "weft-proxy-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
      listener_ = std::move(listenUnix(address_.unix_name).value().fd);
    } else {
      BoundSocket bound = listenTcp("127.0.0.1").value();
      address_.tcp_host = "127.0.0.1";
      address_.tcp_port = bound.port;
      listener_ = std::move(bound.fd);
    }
    makeBlocking(listener_.get());
    acceptor_ = std::thread([this] { acceptAll(); });
  }
  ~Proxy() {
    refuse();
    breakAll();
    std::vector<std::thread> pumps;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pumps.swap(pumps_);
    }
    for (std::thread& pump : pumps)
      pump.join();
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string address() const { return formatAddress(address_); }
  const Address& parts() const { return address_; }

  // All connections end, for both sides.
  void breakAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Connection& connection : connections_)
      end(connection);
    ++breaks_;
  }
  // Of those made so far, the one made so manieth, from 0, ends, for both sides.
  void breakOne(std::size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    end(*std::next(connections_.begin(), static_cast<std::ptrdiff_t>(index)));
  }
  std::size_t connections() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return connections_.size();
  }
  // From now on a connection breaks after so many bytes at most, at random, often far sooner.
  void breakWithin(std::uint64_t bytes, unsigned seed) {
    {
      const std::lock_guard lock(random_mutex_);
      random_.seed(seed);
    }
    break_every_ = bytes;
    left_ = drawn();
  }
  int breaks() const { return breaks_; }
  // From now on, behind the handshake, once in so many bytes on average, a bit flips, or a piece is
  // lost, comes twice or comes in another order, or the connection breaks off.
  void corrupt(std::uint64_t bytes, unsigned seed) {
    {
      const std::lock_guard lock(random_mutex_);
      random_.seed(seed);
    }
    corrupt_every_ = bytes;
  }
  std::uint64_t corrupted() const { return corrupted_; }
  // From now on this byte of what each new connection's dialler says is changed so.
  void change(std::size_t at, std::byte to) {
    changed_to_ = to;
    changed_at_ = static_cast<std::int64_t>(at);
  }
  // From now on remembers what it carries, in both directions.
  void remember() { remembers_ = true; }
  bool carried(const std::string& text) {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    return memory_[0].find(text) != std::string::npos || memory_[1].find(text) != std::string::npos;
  }
  std::uint64_t carriedBytes() {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    return memory_[0].size() + memory_[1].size();
  }

  // From now on each direction of a connection carries so many bytes a second.
  void slowDown(std::uint64_t bytes_per_second) { rate_ = bytes_per_second; }
  // What the connections there are carry from now on never arrives. New ones are not affected.
  void swallow() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Connection& connection : connections_)
      connection.swallowed = true;
  }
  void swallowOne(std::size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::next(connections_.begin(), static_cast<std::ptrdiff_t>(index))->swallowed = true;
  }
  // As swallow(), for those to come as well.
  void swallowAll(bool all) {
    swallow_new_ = all;
    if (all) swallow();
  }

  // Nobody listens here any more.
  void refuse() {
    if (!acceptor_.joinable()) return;
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    listener_.reset();
  }

 private:
  struct Connection {
    UniqueFd sides[2];
    std::atomic<bool> swallowed{false};
    int ended = 0;  // pumps
  };

  static constexpr std::size_t kHandshakeBytes = 256 + 72;  // in each direction

  static void end(const Connection& connection) {
    for (const UniqueFd& side : connection.sides) {
      if (side.valid()) ::shutdown(side.get(), SHUT_RDWR);
    }
  }
  static void makeBlocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

  void acceptAll() {
    while (true) {
      UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client.valid()) return;
      Connecting server =
          unix_ ? connectUnix(target_.unix_name) : connectTcp(target_.tcp_host, target_.tcp_port);
      makeBlocking(server.fd.get());
      if (server.error == EINPROGRESS) server.error = finishConnecting(server.fd.get());
      if (server.error != 0) continue;
      if (!unix_) {
        tuneTcp(client.get());
        tuneTcp(server.fd.get());
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      Connection& connection = connections_.emplace_back();
      connection.sides[0] = std::move(client);
      connection.sides[1] = std::move(server.fd);
      connection.swallowed = swallow_new_.load();
      for (const int from : {0, 1})
        pumps_.emplace_back([this, &connection, from] { pump(connection, from); });
    }
  }
  static int finishConnecting(int fd) {
    pollfd ready{fd, POLLOUT, 0};
    ::poll(&ready, 1, 10'000);
    return connectError(fd);
  }

  std::uint64_t draw() {
    const std::lock_guard lock(random_mutex_);
    return random_();
  }
  std::int64_t drawn() {
    const std::uint64_t most = draw() % 2 == 0 ? break_every_.load() : break_every_ / 32;
    return static_cast<std::int64_t>(draw() % most);
  }

  void pump(Connection& connection, int from) {
    const int in = connection.sides[from].get();
    const int out = connection.sides[1 - from].get();
    constexpr std::size_t kPiece = std::size_t{64} << 10;
    constexpr std::size_t kSlowPiece = std::size_t{8} << 10;
    std::vector<char> bytes(2 * kPiece);  // a part of a piece may come twice
    std::size_t carried_bytes = 0;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    while (true) {
      // A descriptor goes on with the first byte of a write: not with the handshake's.
      const std::size_t handshake_left = kHandshakeBytes - std::min(kHandshakeBytes, carried_bytes);
      const std::uint64_t rate = rate_;
      const std::size_t piece = rate > 0 ? kSlowPiece : kPiece;
      iovec part{bytes.data(), handshake_left > 0 ? handshake_left : piece};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t got = ::recvmsg(in, &message, MSG_CMSG_CLOEXEC);
      if (got <= 0) break;
      UniqueFd carried;
      if (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head), sizeof(int));
        carried = UniqueFd(fd);
      }
      if (connection.swallowed) continue;
      std::size_t whole = static_cast<std::size_t>(got);
      bool cut = false;
      if (break_every_ > 0 && (left_ -= got) < 0) {
        whole = static_cast<std::size_t>(draw() % whole);
        left_ = drawn();
        cut = true;
      }
      if (handshake_left == 0) whole = damageSome(bytes, whole, cut);
      if (const std::int64_t at = changed_at_ - static_cast<std::int64_t>(carried_bytes);
          from == 0 && changed_at_ >= 0 && at >= 0 && at < static_cast<std::int64_t>(whole)) {
        bytes[static_cast<std::size_t>(at)] = static_cast<char>(changed_to_.load());
      }
      if (remembers_) {
        const std::lock_guard<std::mutex> lock(memory_mutex_);
        memory_[from].append(bytes.data(), whole);
      }
      carried_bytes += whole;
      if (rate > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(whole * 1'000'000 / rate));
      if (!sendAll(out, bytes.data(), whole, message)) break;
      if (cut) {
        ++breaks_;
        break;
      }
    }
    ::shutdown(in, SHUT_RDWR);
    ::shutdown(out, SHUT_RDWR);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++connection.ended == 2) {
      for (UniqueFd& side : connection.sides)
        side.reset();
    }
  }
  // Returns how many bytes there are then.
  std::size_t damageSome(std::vector<char>& bytes, std::size_t count, bool& cut) {
    if (corrupt_every_ == 0 || draw() % corrupt_every_ >= count) return count;
    ++corrupted_;
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(count);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(draw() % count);
    const auto last =
        first + 1 + static_cast<std::ptrdiff_t>(draw() % static_cast<std::uint64_t>(end - first));
    switch (draw() % 5) {
      case 0:
        *first ^= static_cast<char>(1 << draw() % 8);
        return count;
      case 1:
        return static_cast<std::size_t>(std::move(last, end, first) - bytes.begin());
      case 2:
        std::copy_backward(first, end, end + (last - first));
        return count + static_cast<std::size_t>(last - first);
      case 3:
        std::rotate(first, first + (last - first) / 2, last);
        return count;
      default:
        cut = true;
        return static_cast<std::size_t>(first - bytes.begin());
    }
  }
  static bool sendAll(int out, char* bytes, std::size_t count, msghdr& message) {
    for (std::size_t at = 0; at < count;) {
      iovec part{bytes + at, count - at};
      message.msg_iov = &part;
      if (at > 0) message.msg_controllen = 0;
      message.msg_flags = 0;
      const ssize_t sent = ::sendmsg(out, &message, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }

  const Address target_;
  const bool unix_;
  Address address_;
  UniqueFd listener_;
  std::thread acceptor_;
  std::mutex mutex_;  // guards the two below
  std::list<Connection> connections_;
  std::vector<std::thread> pumps_;
  std::atomic<bool> swallow_new_{false};
  std::atomic<std::uint64_t> rate_{0};
  std::atomic<int> breaks_{0};
  std::atomic<std::uint64_t> break_every_{0};
  std::atomic<std::int64_t> left_{0};
  std::atomic<std::uint64_t> corrupt_every_{0};
  std::atomic<std::uint64_t> corrupted_{0};
  std::atomic<std::int64_t> changed_at_{-1};
  std::atomic<std::byte> changed_to_{};
  std::atomic<bool> remembers_{false};
  std::mutex memory_mutex_;
  std::string memory_[2];    // guarded by it: of each direction, pieces of all connections
  std::mutex random_mutex_;  // guards the one below: each connection has pumps of its own
  std::minstd_rand random_;
};

}  // namespace weft::transport
