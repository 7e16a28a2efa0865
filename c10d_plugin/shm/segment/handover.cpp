#include "c10d_plugin/shm/segment/handover.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>
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
  Layout layout;
  Digest proof{};
};

Digest proofOf(const AuthKey& key, const std::string& text) {
  WEFT_CHECK(key.valid(), "no endpoint opens without the group's key");
  return transport::hmacSha256(key, std::as_bytes(std::span(text)));
}

// No part but the socket's name can hold a space. Who changes that name on its way through the
// Store, and has no key, gains nothing but that the ranks do not meet.
std::string textOf(const char* label, const std::string& socket_name, const Question& question) {
  return "weft shared memory " + std::string(label) + " " + socket_name + " " +
         std::to_string(question.rank) + " " + transport::toHex(question.nonce);
}

Digest proofOf(const AuthKey& key, const std::string& socket_name, const Question& question) {
  return proofOf(key, textOf("member", socket_name, question));
}

Digest proofOf(const AuthKey& key, const std::string& socket_name, const Question& question,
               const Answer& answer) {
  std::string text = textOf("memory", socket_name, question) + " " + transport::toHex(answer.magic);
  const Layout& layout = answer.layout;
  for (const std::size_t number : {static_cast<std::size_t>(layout.ranks), layout.small_bytes,
                                   layout.buffer_bytes, layout.control_bytes, layout.heap_bytes})
    text += " " + std::to_string(number);
  return proofOf(key, text);
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

Result<int> giveMemory(UniqueFd fd, const Segment& segment, const AuthKey& key,
                       const std::string& socket_name, Deadline deadline) {
  SocketStream socket(std::move(fd), "unix");
  const int size = segment.layout().ranks;
  const int memory = segment.fd();
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  if (Error error = readAll(socket, question, deadline)) return error;
  const Digest due = proofOf(key, socket_name, question);
  if (!transport::sameDigest(question.proof, due)) {
    return Error(ErrorCode::kAuthFailed,
                 "a process without the group's key asked for its shared memory");
  }
  if (question.rank <= 0 || question.rank >= size) {
    return Error(ErrorCode::kProtocol, "a process says it is rank " +
                                           std::to_string(question.rank) + " of " +
                                           std::to_string(size));
  }
  Answer answer;
  answer.magic = segment.magic();
  answer.layout = segment.layout();
  answer.proof = proofOf(key, socket_name, question, answer);
  if (Error error = writeAll(socket, answer, {&memory, 1})) return error;
  return static_cast<int>(question.rank);
}

Result<GivenMemory> takeMemory(UniqueFd fd, const AuthKey& key, const std::string& socket_name,
                               int rank, Deadline deadline) {
  SocketStream socket(std::move(fd), "unix");
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  question.rank = rank;
  if (Error error = transport::fillRandom(question.nonce)) return error;
  question.proof = proofOf(key, socket_name, question);
  if (Error error = writeAll(socket, question, {})) return error;
  Answer answer;
  socket.acceptFds();
  if (Error error = readAll(socket, answer, deadline)) return error;
  SocketStream::ReceivedFd memory = socket.takeFd();
  const Digest due = proofOf(key, socket_name, question, answer);
  if (!transport::sameDigest(answer.proof, due) || !memory.fd.valid())
    return Error(ErrorCode::kAuthFailed,
                 "the process that listens at the group's socket is not its rank 0");
  return GivenMemory{answer.magic, answer.layout, std::move(memory.fd)};
}

}  // namespace weft::collectives::shm
