#include "c10d_plugin/shm/join/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/shm/join/fd_exchange.h"
#include "c10d_plugin/store/record.h"
#include "transport/auth/auth_key.h"
#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/io/socket.h"

namespace weft::collectives::shm {
namespace {

using transport::AuthKey;
using transport::UniqueFd;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{100};
constexpr milliseconds kPerGuest{1000};

std::string failedKey(int rank) { return "shm-failed/" + std::to_string(rank); }

// What rank 0 publishes: how to get the memory, and its layout.
struct Invitation {
  std::string socket;
  AuthKey secret;
  std::size_t buffer_bytes = 0;
  std::size_t small_bytes = 0;
  std::size_t heap_bytes = 0;

  std::string toText() const {
    return Record()
        .set("socket", socket)
        .set("secret", secret.toHex())
        .set("buffer_bytes", buffer_bytes)
        .set("small_bytes", small_bytes)
        .set("heap_bytes", heap_bytes)
        .toText();
  }
  static Result<Invitation> fromText(const std::string& text);
};

Result<Invitation> Invitation::fromText(const std::string& text) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const Record record = Record::fromText(text).value_or(Record());
  if (const std::string why = record.text("error"); !why.empty())
    return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
  const Result<AuthKey> secret = AuthKey::fromHex(record.text("secret"));
  const auto buffer = record.number("buffer_bytes");
  const auto small = record.number("small_bytes");
  const auto heap = record.number("heap_bytes");
  if (!secret.ok() || !buffer || !small || !heap || *buffer > kMost || *small > kMost ||
      *heap > kMostHeap) {
    return Error(ErrorCode::kProtocol, "malformed rendezvous message from rank 0");
  }
  return Invitation{record.text("socket"), secret.value(), *buffer, *small, *heap};
}

struct Hosting {
  std::shared_ptr<Segment> segment;
  UniqueFd listener;
  Invitation invitation;
};

Result<Hosting> prepare(const Layout& layout) {
  Hosting hosting;
  std::array<std::uint8_t, 12> name{};
  if (Error error = transport::fillRandom(name)) return error;
  Result<AuthKey> secret = AuthKey::random();
  if (!secret.ok()) return secret.error();
  hosting.invitation = {"weft-group-" + transport::toHex(name), secret.value(), layout.buffer_bytes,
                        layout.small_bytes, layout.heap_bytes};
  Result<transport::BoundSocket> bound = transport::listenUnix(hosting.invitation.socket);
  if (!bound.ok()) return bound.error();
  hosting.listener = std::move(bound.value().fd);
  Result<std::shared_ptr<Segment>> segment = Segment::create(layout);
  if (!segment.ok()) return segment.error();
  hosting.segment = std::move(segment.value());
  if (Error error = hosting.segment->enter(0)) return error;
  return hosting;
}

std::vector<int> missingIn(const std::vector<bool>& served) {
  std::vector<int> missing;
  for (std::size_t rank = 1; rank < served.size(); ++rank) {
    if (!served[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
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

Error serveAll(const Hosting& hosting, KeyValue& store, int size, Deadline deadline) {
  std::vector<bool> served(static_cast<std::size_t>(size), false);
  std::string last_problem;
  while (!missingIn(served).empty()) {
    if (Clock::now() >= deadline) {
      return {ErrorCode::kTimeout, "Timed out: " + ranksAsText(missingIn(served)) +
                                       " did not come for the group's shared memory" +
                                       (last_problem.empty() ? "" : " (" + last_problem + ")")};
    }
    if (!awaitReadable(hosting.listener.get(), std::min(deadline, Clock::now() + kPoll))) {
      if (Error error = findFailure(store, missingIn(served))) return error;
      continue;
    }
    const UniqueFd guest(
        ::accept4(hosting.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest.valid()) continue;
    Result<int> rank =
        give(guest.get(), hosting.segment->fd(), hosting.segment->magic(),
             hosting.invitation.secret, size, std::min(deadline, Clock::now() + kPerGuest));
    if (rank.ok()) {
      served[static_cast<std::size_t>(rank.value())] = true;
    } else {
      last_problem = rank.error().text();
    }
  }
  return Error::ok();
}

Result<UniqueFd> dial(const std::string& name, Deadline deadline) {
  for (;;) {
    transport::Connecting connecting = transport::connectUnix(name);
    if (connecting.error == 0) return std::move(connecting.fd);
    // EAGAIN: more ranks connect at once than the socket's queue holds.
    if (connecting.error != EAGAIN || Clock::now() >= deadline) {
      return transport::systemError(
          "connecting to rank 0's Unix socket (is it another host, or "
          "another network namespace?)",
          connecting.error);
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
}

Result<std::shared_ptr<Segment>> fetch(const Invitation& invitation, int rank, int size,
                                       Deadline deadline) {
  Result<UniqueFd> socket = dial(invitation.socket, deadline);
  if (!socket.ok()) return socket.error();
  Result<Received> received = take(socket.value().get(), rank, invitation.secret, deadline);
  if (!received.ok()) return received.error();
  Result<std::shared_ptr<Segment>> segment = Segment::open(
      Layout::of(size, invitation.buffer_bytes, invitation.small_bytes, invitation.heap_bytes),
      received.value().magic, std::move(received.value().memory));
  if (!segment.ok()) return segment.error();
  if (Error error = segment.value()->enter(rank)) {
    segment.value()->fail(error);
    return error;
  }
  return segment;
}

}  // namespace

Result<std::shared_ptr<Segment>> host(const Layout& layout, KeyValue& store, Deadline deadline) {
  Result<Hosting> hosting = prepare(layout);
  if (!hosting.ok()) {
    // If this fails too, the others end at their deadline.
    static_cast<void>(store.set("shm", Record().set("error", hosting.error().text()).toText()));
    return hosting.error();
  }
  if (Error error = store.set("shm", hosting.value().invitation.toText())) return error;
  if (Error error = serveAll(hosting.value(), store, layout.ranks, deadline)) {
    hosting.value().segment->fail(error);
    return error;
  }
  return std::move(hosting.value().segment);
}

Result<std::shared_ptr<Segment>> attach(KeyValue& store, int rank, int size, Deadline deadline) {
  Result<std::string> text = store.get("shm", deadline);
  if (!text.ok()) return text.error();
  Result<Invitation> invitation = Invitation::fromText(text.value());
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
      sleepOn(presence, static_cast<std::uint32_t>(Presence::kNotYet),
              std::min<std::chrono::nanoseconds>(kPoll, deadline - now));
    }
  }
  return Error::ok();
}

}  // namespace weft::collectives::shm
