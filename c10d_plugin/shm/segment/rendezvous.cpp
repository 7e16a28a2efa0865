#include "c10d_plugin/shm/segment/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/record.h"
#include "transport/auth/auth_key.h"
#include "transport/auth/digest.h"
#include "transport/base/check.h"
#include "transport/base/interruption.h"
#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/io/socket.h"
#include "transport/io/stream.h"

namespace weft::collectives::shm {
namespace {

using transport::AuthKey;
using transport::Digest;
using transport::sameUser;
using transport::SocketStream;
using transport::systemError;
using transport::UniqueFd;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

using Nonce = std::array<std::uint8_t, 16>;

constexpr milliseconds kPoll{100};
constexpr milliseconds kPerGuest{1000};

std::string failedKey(int rank) { return "shm-failed/" + std::to_string(rank); }

Result<AuthKey> secretFrom(const AuthKey& key, const std::string& socket) {
  const std::string text = "weft shared memory " + socket;
  return AuthKey::fromHex(
      transport::toHex(transport::hmacSha256(key, std::as_bytes(std::span(text)))));
}

// What rank 0 publishes: how to get the memory, and its layout.
struct Invitation {
  std::string socket;
  AuthKey secret;
  bool publishes_secret = true;
  std::size_t buffer_bytes = 0;
  std::size_t small_bytes = 0;
  std::size_t heap_bytes = 0;

  std::string toText() const {
    return Record()
        .set("socket", socket)
        .set("secret", publishes_secret ? secret.toHex() : "")
        .set("buffer_bytes", buffer_bytes)
        .set("small_bytes", small_bytes)
        .set("heap_bytes", heap_bytes)
        .toText();
  }
  static Result<Invitation> fromText(const std::string& text, const AuthKey& key) {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    const Record record = Record::fromText(text).value_or(Record());
    if (const std::string why = record.text("error"); !why.empty())
      return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
    const Result<AuthKey> secret = key.valid() ? secretFrom(key, record.text("socket"))
                                               : AuthKey::fromHex(record.text("secret"));
    const auto buffer = record.number("buffer_bytes");
    const auto small = record.number("small_bytes");
    const auto heap = record.number("heap_bytes");
    if (!secret.ok() || !buffer || !small || !heap || *buffer > kMost || *small > kMost ||
        *heap > kMostHeap) {
      return Error(ErrorCode::kProtocol, "malformed rendezvous message from rank 0");
    }
    return Invitation{record.text("socket"), secret.value(), !key.valid(), *buffer, *small, *heap};
  }
};

// --- the two messages on one connected Unix socket, which is non-blocking ---

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

// True when `socket` became readable before the deadline and Ctrl-C.
bool awaitReadable(int socket, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted{socket, POLLIN, 0};
    const int wait = static_cast<int>(
        std::clamp<std::int64_t>(left.count(), 0, transport::kInterruptEvery.count()));
    const int ready = ::poll(&wanted, 1, wait);
    if (ready > 0) return true;
    if (left.count() <= 0 || transport::interrupted()) return false;
  }
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
    if (!awaitReadable(socket.pollFd(), deadline))
      return {ErrorCode::kTimeout, "Timed out: nothing came over the group's socket"};
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

// --- rank 0 ---

struct Hosting {
  std::shared_ptr<Segment> segment;
  UniqueFd listener;
  Invitation invitation;
};

Result<Hosting> prepare(const Layout& layout, const AuthKey& key) {
  Hosting hosting;
  std::array<std::uint8_t, 12> name{};
  if (Error error = transport::fillRandom(name)) return error;
  const std::string socket = "weft-group-" + transport::toHex(name);
  Result<AuthKey> secret = key.valid() ? secretFrom(key, socket) : AuthKey::random();
  if (!secret.ok()) return secret.error();
  hosting.invitation = {
      socket,           secret.value(), !key.valid(), layout.buffer_bytes, layout.small_bytes,
      layout.heap_bytes};
  Result<transport::BoundSocket> bound = transport::listenUnix(hosting.invitation.socket);
  if (!bound.ok()) return bound.error();
  hosting.listener = std::move(bound.value().fd);
  Result<std::shared_ptr<Segment>> segment = Segment::create(layout);
  if (!segment.ok()) return segment.error();
  hosting.segment = std::move(segment.value());
  if (Error error = hosting.segment->enter(0)) return error;
  return hosting;
}

// Authenticates the process at the other end and gives it the memory. Returns its rank.
Result<int> give(SocketStream& socket, const Hosting& hosting, Deadline deadline) {
  const AuthKey& secret = hosting.invitation.secret;
  const int size = hosting.segment->layout().ranks;
  const int memory = hosting.segment->fd();
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  if (Error error = readAll(socket, question, deadline)) return error;
  const Digest due = proofOf(secret, "member", question.rank, question.nonce);
  if (!transport::sameDigest(question.proof, due)) {
    return Error(ErrorCode::kAuthFailed, "a process without the group's secret wants its memory");
  }
  if (question.rank <= 0 || question.rank >= size) {
    return Error(ErrorCode::kProtocol, "a process says it is rank " +
                                           std::to_string(question.rank) + " of " +
                                           std::to_string(size));
  }
  Answer answer;
  answer.magic = hosting.segment->magic();
  answer.proof = proofOf(secret, "memory", question.rank, question.nonce);
  if (Error error = writeAll(socket, answer, {&memory, 1})) return error;
  return static_cast<int>(question.rank);
}

// A missing rank has published that it failed.
Error findFailure(KeyValue& store, const std::vector<int>& missing) {
  for (const int rank : missing) {
    const Result<std::string> why = store.get(failedKey(rank), Clock::now());
    if (!why.ok()) continue;
    return {ErrorCode::kPeerLost, "rank " + std::to_string(rank) +
                                      " could not join the group's shared memory: " + why.value()};
  }
  return Error::ok();
}

Error serveAll(const Hosting& hosting, KeyValue& store, Deadline deadline) {
  std::vector<int> missing(static_cast<std::size_t>(hosting.segment->layout().ranks) - 1);
  std::iota(missing.begin(), missing.end(), 1);
  std::string last_problem;
  while (!missing.empty()) {
    if (Clock::now() >= deadline) {
      return {ErrorCode::kTimeout, "Timed out: " + ranksAsText(missing) +
                                       " did not come for the group's shared memory" +
                                       (last_problem.empty() ? "" : " (" + last_problem + ")")};
    }
    if (!awaitReadable(hosting.listener.get(), std::min(deadline, Clock::now() + kPoll))) {
      if (Error error = findFailure(store, missing)) return error;
      continue;
    }
    UniqueFd guest(
        ::accept4(hosting.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest.valid()) continue;
    SocketStream socket(std::move(guest), "unix");
    const Result<int> rank = give(socket, hosting, std::min(deadline, Clock::now() + kPerGuest));
    if (rank.ok()) {
      std::erase(missing, rank.value());
    } else {
      last_problem = rank.error().text();
    }
  }
  return Error::ok();
}

// --- the other ranks ---

Result<UniqueFd> dial(const std::string& name, Deadline deadline) {
  for (;;) {
    transport::Connecting connecting = transport::connectUnix(name);
    if (connecting.error == 0) return std::move(connecting.fd);
    // EAGAIN: more ranks connect at once than the socket's queue holds.
    if (connecting.error != EAGAIN || Clock::now() >= deadline) {
      return systemError(
          "connecting to rank 0's Unix socket (is it another host, or "
          "another network namespace?)",
          connecting.error);
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
}

// Authenticates this rank, takes the memory and maps it.
Result<std::shared_ptr<Segment>> fetch(const Invitation& invitation, int rank, int size,
                                       Deadline deadline) {
  Result<UniqueFd> dialled = dial(invitation.socket, deadline);
  if (!dialled.ok()) return dialled.error();
  SocketStream socket(std::move(dialled.value()), "unix");
  if (Error error = sameUser(socket.pollFd())) return error;
  Question question;
  question.rank = rank;
  if (Error error = transport::fillRandom(question.nonce)) return error;
  question.proof = proofOf(invitation.secret, "member", rank, question.nonce);
  if (Error error = writeAll(socket, question, {})) return error;
  Answer answer;
  socket.acceptFds();
  if (Error error = readAll(socket, answer, deadline)) return error;
  SocketStream::ReceivedFd memory = socket.takeFd();
  const Digest due = proofOf(invitation.secret, "memory", rank, question.nonce);
  if (!transport::sameDigest(answer.proof, due) || !memory.fd.valid())
    return Error(ErrorCode::kAuthFailed, "what listens for the group is not its rank 0");
  Result<std::shared_ptr<Segment>> segment = Segment::open(
      Layout::of(size, invitation.buffer_bytes, invitation.small_bytes, invitation.heap_bytes),
      answer.magic, std::move(memory.fd));
  if (!segment.ok()) return segment;
  if (Error error = segment.value()->enter(rank)) {
    segment.value()->fail(error);
    return error;
  }
  return segment;
}

}  // namespace

Result<std::shared_ptr<Segment>> host(const Layout& layout, const AuthKey& key, KeyValue& store,
                                      Deadline deadline) {
  Result<Hosting> hosting = prepare(layout, key);
  if (!hosting.ok()) {
    // If this fails too, the others end at their deadline.
    static_cast<void>(store.set("shm", Record().set("error", hosting.error().text()).toText()));
    return hosting.error();
  }
  if (Error error = store.set("shm", hosting.value().invitation.toText())) return error;
  if (Error error = serveAll(hosting.value(), store, deadline)) {
    hosting.value().segment->fail(error);
    return error;
  }
  return std::move(hosting.value().segment);
}

Result<std::shared_ptr<Segment>> attach(const AuthKey& key, KeyValue& store, int rank, int size,
                                        Deadline deadline) {
  Result<std::string> text = store.get("shm", deadline);
  if (!text.ok()) return text.error();
  Result<Invitation> invitation = Invitation::fromText(text.value(), key);
  if (!invitation.ok()) return invitation.error();
  Result<std::shared_ptr<Segment>> segment = fetch(invitation.value(), rank, size, deadline);
  // Otherwise rank 0 would wait for this rank until its deadline.
  if (!segment.ok()) static_cast<void>(store.set(failedKey(rank), segment.error().text()));
  return segment;
}

Error awaitAll(Segment& segment, int rank, Deadline deadline) {
  for (int other = 0; other < segment.layout().ranks; ++other) {
    Word& presence = segment.control(other).presence;
    while (segment.presence(other) == Presence::kNotYet) {
      if (segment.failed()) return segment.failure();
      const auto now = Clock::now();
      const bool rank_0_died = segment.died(0);
      if (rank_0_died || now >= deadline) {
        segment.fail(rank_0_died
                         ? Error(ErrorCode::kPeerLost, "rank 0 died while the group was made")
                         : Error(ErrorCode::kTimeout, "Timed out: rank " + std::to_string(other) +
                                                          " did not join the group; rank " +
                                                          std::to_string(rank) + " waited for it"));
        return segment.failure();
      }
      if (transport::interrupted()) {
        Error own(ErrorCode::kInterrupted, interruptedText(rank, "the group was made"));
        segment.fail(own);
        return own;
      }
      sleepOn(presence, static_cast<std::uint32_t>(Presence::kNotYet),
              std::min<std::chrono::nanoseconds>(kPoll, deadline - now));
    }
  }
  return Error::ok();
}

}  // namespace weft::collectives::shm
