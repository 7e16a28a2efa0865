// A stranger: a bare socket that can say anything to an endpoint.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/transport/recorder.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/socket.h"

namespace weft::transport {

class RawClient {
 public:
  explicit RawClient(const Endpoint& endpoint) {
    const Address address = parseAddress(endpoint.address()).value();
    Connecting made = address.hasUnix() ? connectUnix(address.unix_name)
                                        : connectTcp(address.tcp_host, address.tcp_port);
    fd_ = std::move(made.fd);
    if (made.error == EINPROGRESS) ready(POLLOUT);
    EXPECT_EQ(connectError(fd_.get()), 0);
  }

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
      } else if (errno != EAGAIN || !ready(POLLOUT)) {
        return;  // the endpoint has hung up
      }
    }
  }

  // Exactly `count` bytes, or fewer when the stream ends or nothing comes for kPatience.
  std::vector<std::byte> receive(std::size_t count) {
    std::vector<std::byte> bytes;
    while (bytes.size() < count) {
      std::byte one[4096];
      const ssize_t got = ::recv(fd_.get(), one, std::min(sizeof(one), count - bytes.size()), 0);
      if (got > 0) {
        bytes.insert(bytes.end(), one, one + got);
      } else if (got == 0 || errno != EAGAIN || !ready(POLLIN)) {
        break;
      }
    }
    return bytes;
  }

  // The endpoint hangs up, whatever it says before.
  bool ended() {
    std::byte one[4096];
    while (true) {
      const ssize_t got = ::recv(fd_.get(), one, sizeof(one), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
      if (got < 0 && !ready(POLLIN)) return false;
    }
  }

  void finishWriting() { ::shutdown(fd_.get(), SHUT_WR); }

  // Becomes an authenticated peer. False: refused.
  bool join(const Identity& self, std::int32_t target_rank, const std::string& target_name) {
    Nonce nonce{};
    static std::uint8_t count = 0;
    nonce.fill(++count);
    Handshake handshake = Handshake::dialler(self, target_rank, target_name, nonce);
    while (true) {
      send(handshake.output());
      if (handshake.wanted() == 0) break;
      const std::vector<std::byte> bytes = receive(handshake.wanted());
      if (bytes.empty()) break;
      handshake.feed(bytes);
    }
    refusal = handshake.refusal();
    return handshake.status() == Handshake::Status::kDone;
  }

  RefusalCode refusal = RefusalCode::kNone;

 private:
  bool ready(short what) {
    pollfd poll{fd_.get(), what, 0};
    return ::poll(&poll, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1;
  }

  UniqueFd fd_;
};

inline Identity identityOf(const EndpointOptions& options) {
  Identity self;
  self.name = options.name;
  self.rank = options.rank;
  self.incarnation = 4711;
  self.group = sha256(options.group_id);
  self.key = options.key;
  return self;
}

}  // namespace weft::transport
