#include "c10d_plugin/shm/join/fd_exchange.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "transport/base/bytes.h"
#include "transport/base/check.h"
#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"

namespace weft::collectives::shm {
namespace {

using transport::AuthKey;
using transport::systemError;
using transport::UniqueFd;

using Digest = std::array<std::uint8_t, 32>;
using Nonce = std::array<std::uint8_t, 16>;

// Both ends are the same program on one machine: no byte order, no version.
struct Question {
  std::int32_t rank = -1;
  Nonce nonce{};
  Digest proof{};
};
struct Answer {
  Magic magic{};
  Digest proof{};
};

Digest proofOf(const AuthKey& secret, std::string_view label, std::int32_t rank,
               const Nonce& nonce) {
  constexpr std::size_t kLabel = 16;  // of fixed size, so that no two inputs coincide
  std::array<std::uint8_t, kLabel + sizeof(rank) + sizeof(Nonce)> text{};
  WEFT_CHECK(label.size() <= kLabel, "labels are short");
  std::memcpy(text.data(), label.data(), label.size());
  std::memcpy(text.data() + kLabel, &rank, sizeof(rank));
  std::memcpy(text.data() + kLabel + sizeof(rank), nonce.data(), nonce.size());
  Digest mac{};
  unsigned length = 0;
  const unsigned char* const done =
      ::HMAC(EVP_sha256(), secret.bytes().data(), static_cast<int>(secret.bytes().size()),
             text.data(), text.size(), mac.data(), &length);
  WEFT_CHECK(done != nullptr && length == mac.size(), "HMAC-SHA-256 is always there");
  return mac;
}

bool proves(const Digest& given, const Digest& due) {
  return CRYPTO_memcmp(given.data(), due.data(), due.size()) == 0;
}

Error sameUser(int socket) {
  ucred other{};
  socklen_t length = sizeof(other);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) {
    return systemError("asking who is at the other end", errno);
  }
  if (other.uid == ::geteuid()) return Error::ok();
  return {ErrorCode::kAuthFailed, "another user's process (uid " + std::to_string(other.uid) +
                                      ") is at the other end of the socket"};
}

Error closedEarly() {
  return {ErrorCode::kPeerLost, "the other end closed the socket before it was served"};
}

// Exactly out.size() bytes. A descriptor that comes with them goes to `memory`.
Error readAll(int socket, std::span<std::byte> out, UniqueFd* memory, Deadline deadline) {
  while (!out.empty()) {
    iovec part{out.data(), out.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got > 0) {
      const cmsghdr* const header = CMSG_FIRSTHDR(&message);
      if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        UniqueFd received(fd);
        if (memory != nullptr) *memory = std::move(received);
      }
      out = out.subspan(static_cast<std::size_t>(got));
      continue;
    }
    if (got == 0) return closedEarly();
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return systemError("reading from the group's socket", errno);
    if (!awaitReadable(socket, deadline)) {
      return {ErrorCode::kTimeout, "Timed out: nothing came over the group's socket"};
    }
  }
  return Error::ok();
}

// Some hundred bytes always fit into a new socket's buffer.
Error writeAll(int socket, std::span<const std::byte> bytes, int memory) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (memory >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof(memory));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes.size())) return Error::ok();
  return systemError("writing to the group's socket", sent < 0 ? errno : EAGAIN);
}

template <typename T>
std::span<std::byte> bytesOf(T& value) {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

}  // namespace

bool awaitReadable(int socket, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted{socket, POLLIN, 0};
    const int wait = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    const int ready = ::poll(&wanted, 1, wait);
    if (ready > 0) return true;
    if (left.count() <= 0) return false;
  }
}

Result<int> give(int socket, int memory, const Magic& magic, const AuthKey& secret, int size,
                 Deadline deadline) {
  if (Error error = sameUser(socket)) return error;
  Question question;
  if (Error error = readAll(socket, bytesOf(question), nullptr, deadline)) return error;
  const Digest due = proofOf(secret, "member", question.rank, question.nonce);
  if (!proves(question.proof, due)) {
    return Error(ErrorCode::kAuthFailed, "a process without the group's secret wants its memory");
  }
  if (question.rank <= 0 || question.rank >= size) {
    return Error(ErrorCode::kProtocol, "a process says it is rank " +
                                           std::to_string(question.rank) + " of " +
                                           std::to_string(size));
  }
  Answer answer;
  answer.magic = magic;
  answer.proof = proofOf(secret, "memory", question.rank, question.nonce);
  if (Error error = writeAll(socket, bytesOf(answer), memory)) return error;
  return static_cast<int>(question.rank);
}

Result<Received> take(int socket, int rank, const AuthKey& secret, Deadline deadline) {
  if (Error error = sameUser(socket)) return error;
  Question question;
  question.rank = rank;
  if (Error error = transport::fillRandom(question.nonce)) return error;
  question.proof = proofOf(secret, "member", question.rank, question.nonce);
  if (Error error = writeAll(socket, bytesOf(question), -1)) return error;
  Answer answer;
  Received received;
  if (Error error = readAll(socket, bytesOf(answer), &received.memory, deadline)) return error;
  const Digest due = proofOf(secret, "memory", question.rank, question.nonce);
  if (!proves(answer.proof, due) || !received.memory.valid()) {
    return Error(ErrorCode::kAuthFailed, "what listens for the group is not its rank 0");
  }
  received.magic = answer.magic;
  return received;
}

}  // namespace weft::collectives::shm
