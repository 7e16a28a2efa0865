// A stranger: a bare socket that can say anything to an endpoint.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/transport/recorder.h"
#include "transport/auth/handshake.h"
#include "transport/checksum/checked_stream.h"
#include "transport/io/address.h"
#include "transport/io/socket.h"

namespace weft::transport {

class RawClient {
 public:
  explicit RawClient(const Endpoint& endpoint) {
    const Address address = parseAddress(endpoint.address()).value();
    is_tcp_ = !address.hasUnix();
    take(address.hasUnix() ? connectUnix(address.unix_name)
                           : connectTcp(address.tcp_host, address.tcp_port));
  }
  // Over TCP, from this IPv4 address of the host (all of 127.0.0.0/8 are).
  RawClient(const Endpoint& endpoint, const char* from) {
    const Address address = parseAddress(endpoint.address()).value();
    sockaddr_in own{};
    own.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &own.sin_addr);
    sockaddr_in other = own;
    ::inet_pton(AF_INET, address.tcp_host.c_str(), &other.sin_addr);
    other.sin_port = htons(address.tcp_port);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    const int status = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&other), sizeof(other));
    is_tcp_ = true;
    take({std::move(fd), status == 0 ? 0 : errno});
  }

  void send(std::span<const std::byte> bytes) {
    while (checked_ && !bytes.empty()) {
      iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const IoResult result = checked_->write(std::span(&part, 1), {});
      bytes = bytes.subspan(result.count);
      if (result.error != 0 && (result.error != EAGAIN || !ready(POLLOUT))) return;
    }
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
      } else if (errno != EAGAIN || !ready(POLLOUT)) {
        return;  // the endpoint has hung up
      }
    }
  }

  // `bytes` in one write, with descriptors beside them.
  void sendWithFds(std::span<const std::byte> bytes, const std::vector<int>& fds) {
    std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
    EXPECT_EQ(::sendmsg(fd_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  // Some bytes, at most `count`; a descriptor that comes with them goes to `fd`.
  std::vector<std::byte> receiveWithFd(std::size_t count, UniqueFd& fd) {
    std::vector<std::byte> bytes(count);
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
    while (true) {
      iovec part{bytes.data(), count};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
      if (got < 0 && errno == EAGAIN && ready(POLLIN)) continue;
      bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
      if (got > 0 && CMSG_FIRSTHDR(&message) != nullptr) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
        fd = UniqueFd(number);
      }
      return bytes;
    }
  }

  // Exactly `count` bytes, or fewer when the stream ends or nothing comes for kPatience.
  std::vector<std::byte> receive(std::size_t count) {
    std::vector<std::byte> bytes;
    while (bytes.size() < count) {
      std::byte one[4096];
      const ssize_t got = receiveSome(one, std::min(sizeof(one), count - bytes.size()));
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
    Handshake handshake = Handshake::dialler(self, target_rank, target_name, nonce, claim);
    while (true) {
      send(handshake.output());
      if (handshake.wanted() == 0) break;
      const std::vector<std::byte> bytes = receive(handshake.wanted());
      if (bytes.empty()) break;
      handshake.feed(bytes);
      if (before_proof) std::exchange(before_proof, nullptr)();
    }
    refusal = handshake.refusal();
    peer_claim = handshake.peerClaim();
    const bool joined = handshake.status() == Handshake::Status::kDone;
    if (joined && is_tcp_) {
      auto below = std::make_shared<SocketStream>(UniqueFd(::dup(fd_.get())), "tcp");
      checked_ = std::make_shared<CheckedStream>(std::move(below), handshake.checksumSeeds());
    }
    return joined;
  }

  std::function<void()> before_proof;  // in join(): the endpoint has answered the hello
  RefusalCode refusal = RefusalCode::kNone;
  SessionClaim claim{4712, 0, 0, 1};  // what join() says
  SessionClaim peer_claim;            // what it was told

 private:
  void take(Connecting made) {
    fd_ = std::move(made.fd);
    if (made.error == EINPROGRESS) ready(POLLOUT);
    EXPECT_EQ(connectError(fd_.get()), 0);
  }
  bool ready(short what) {
    pollfd poll{fd_.get(), what, 0};
    return ::poll(&poll, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1;
  }

  // As recv().
  ssize_t receiveSome(std::byte* to, std::size_t count) {
    if (!checked_) return ::recv(fd_.get(), to, count, 0);
    iovec part{to, count};
    const IoResult result = checked_->read(std::span(&part, 1));
    errno = result.error;
    return result.error != 0 ? -1 : static_cast<ssize_t>(result.count);
  }

  UniqueFd fd_;
  bool is_tcp_ = false;
  std::shared_ptr<CheckedStream> checked_;  // over TCP, once it has joined
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
