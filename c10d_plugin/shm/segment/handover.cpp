#include "c10d_plugin/shm/segment/handover.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/auth/digest.h"
#include "transport/base/check.h"
#include "transport/base/interruption.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"
#include "transport/io/socket.h"
#include "transport/io/stream.h"

namespace weft::collectives::shm {

using transport::AuthKey;
using transport::Digest;
using transport::sameUser;
using transport::SocketStream;
using transport::systemError;
using transport::UniqueFd;
using transport::Waited;

Waited awaitReadable(int socket, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted{socket, POLLIN, 0};
    const int wait = static_cast<int>(
        std::clamp<std::int64_t>(left.count(), 0, transport::kInterruptEvery.count()));
    const int ready = ::poll(&wanted, 1, wait);
    if (ready > 0) return Waited::kDone;
    if (left.count() <= 0) return Waited::kLate;
    if (transport::interrupted()) return Waited::kInterrupted;
  }
}

namespace {

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
  std::array<std::byte, kLabel + sizeof(rank) + sizeof(Nonce)> text{};
  WEFT_CHECK(label.size() <= kLabel, "labels are short");
  std::memcpy(text.data(), label.data(), label.size());
  std::memcpy(text.data() + kLabel, &rank, sizeof(rank));
  std::memcpy(text.data() + kLabel + sizeof(rank), nonce.data(), nonce.size());
  return transport::hmacSha256(secret, text);
}

// Exactly the bytes of `out`.
template <typename T>
Error readAll(SocketStream& socket, T& out, Deadline deadline) {
  std::span<std::byte> left = std::as_writable_bytes(std::span<T, 1>(&out, 1));
  while (!left.empty()) {
    iovec part{left.data(), left.size()};
    const transport::IoResult got = socket.read({&part, 1});
    left = left.subspan(got.count);
    if (got.end)
      return {ErrorCode::kPeerLost, "the other end closed the socket before it was served"};
    if (got.error == 0) continue;
    if (got.error != EAGAIN) return systemError("reading from the group's socket", got.error);
    switch (awaitReadable(socket.pollFd(), deadline)) {
      case Waited::kDone:
        break;
      case Waited::kLate:
        return {ErrorCode::kTimeout, "Timed out: nothing came over the group's socket"};
      case Waited::kInterrupted:
        return {ErrorCode::kInterrupted, std::string("forming the group was ") + kInterrupted};
    }
  }
  return Error::ok();
}

// Some hundred bytes always fit into a new socket's buffer.
template <typename T>
Error writeAll(SocketStream& socket, T& bytes, std::span<const int> fds) {
  iovec part{&bytes, sizeof(T)};
  const transport::IoResult sent = socket.write({&part, 1}, fds);
  if (sent.count == sizeof(T)) return Error::ok();
  return systemError("writing to the group's socket", sent.error != 0 ? sent.error : EAGAIN);
}

}  // namespace

Result<int> giveMemory(UniqueFd fd, const Segment& segment, const AuthKey& secret,
                       Deadline deadline) {
  SocketStream socket(std::move(fd), "unix");
  const int size = segment.layout().ranks;
  const int memory = segment.fd();
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  if (Error error = readAll(socket, question, deadline)) return error;
  const Digest due = proofOf(secret, "member", question.rank, question.nonce);
  if (!transport::sameDigest(question.proof, due)) {
    return Error(ErrorCode::kAuthFailed,
                 "a process without the group's secret asked for its shared memory");
  }
  if (question.rank <= 0 || question.rank >= size) {
    return Error(ErrorCode::kProtocol, "a process says it is rank " +
                                           std::to_string(question.rank) + " of " +
                                           std::to_string(size));
  }
  Answer answer;
  answer.magic = segment.magic();
  answer.proof = proofOf(secret, "memory", question.rank, question.nonce);
  if (Error error = writeAll(socket, answer, {&memory, 1})) return error;
  return static_cast<int>(question.rank);
}

Result<GivenMemory> takeMemory(UniqueFd fd, const AuthKey& secret, int rank, Deadline deadline) {
  SocketStream socket(std::move(fd), "unix");
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  question.rank = rank;
  if (Error error = transport::fillRandom(question.nonce)) return error;
  question.proof = proofOf(secret, "member", rank, question.nonce);
  if (Error error = writeAll(socket, question, {})) return error;
  Answer answer;
  socket.acceptFds();
  if (Error error = readAll(socket, answer, deadline)) return error;
  SocketStream::ReceivedFd memory = socket.takeFd();
  const Digest due = proofOf(secret, "memory", rank, question.nonce);
  if (!transport::sameDigest(answer.proof, due) || !memory.fd.valid())
    return Error(ErrorCode::kAuthFailed,
                 "the process that listens at the group's socket is not its rank 0");
  return GivenMemory{answer.magic, std::move(memory.fd)};
}

}  // namespace weft::collectives::shm
