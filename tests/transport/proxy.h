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
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "transport/base/unique_fd.h"
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
    random_.seed(seed);
    break_every_ = bytes;
    left_ = drawn();
  }
  int breaks() const { return breaks_; }

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

  std::int64_t drawn() {
    const std::uint64_t most = random_() % 2 == 0 ? break_every_.load() : break_every_ / 32;
    return static_cast<std::int64_t>(random_() % most);
  }

  void pump(Connection& connection, int from) {
    const int in = connection.sides[from].get();
    const int out = connection.sides[1 - from].get();
    std::vector<char> bytes(std::size_t{64} << 10);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    while (true) {
      iovec part{bytes.data(), bytes.size()};
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
        whole = static_cast<std::size_t>(random_() % whole);
        left_ = drawn();
        cut = true;
      }
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
  std::atomic<int> breaks_{0};
  std::atomic<std::uint64_t> break_every_{0};
  std::atomic<std::int64_t> left_{0};
  std::minstd_rand random_;  // a race between pumps only makes it more random
};

}  // namespace weft::transport
