#include "c10d_plugin/shm/join/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/shm/join/fd_exchange.h"
#include "c10d_plugin/shm/sync/step_barrier.h"
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

constexpr milliseconds kLookUp{100};
constexpr milliseconds kPerStranger{1000};

std::string failedKey(int rank) { return "shm-failed/" + std::to_string(rank); }

struct Invitation {
  std::string socket;
  AuthKey secret;
  std::size_t buffer_bytes = 0;
  std::size_t small_bytes = 0;
  std::size_t heap_bytes = 0;

  std::string text() const {
    return "ok " + socket + " " + secret.toHex() + " " + std::to_string(buffer_bytes) + " " +
           std::to_string(small_bytes) + " " + std::to_string(heap_bytes);
  }
  static Result<Invitation> parse(const std::string& text);
};

Result<Invitation> Invitation::parse(const std::string& text) {
  std::istringstream words(text);
  std::string verdict;
  std::string secret;
  Invitation invitation;
  words >> verdict;
  if (verdict == "error") {
    std::string why;
    std::getline(words >> std::ws, why);
    return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
  }
  words >> invitation.socket >> secret >> invitation.buffer_bytes >> invitation.small_bytes >>
      invitation.heap_bytes;
  constexpr std::size_t kMost = std::size_t{1} << 30;
  Result<AuthKey> key = AuthKey::fromHex(secret);
  if (!words || verdict != "ok" || !key.ok() || invitation.buffer_bytes > kMost ||
      invitation.small_bytes > kMost || invitation.heap_bytes > kMostHeap) {
    return Error(ErrorCode::kProtocol, "rank 0 left an invitation that makes no sense");
  }
  invitation.secret = key.value();
  return invitation;
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

std::vector<int> without(const std::vector<bool>& served) {
  std::vector<int> missing;
  for (std::size_t rank = 1; rank < served.size(); ++rank) {
    if (!served[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

// Somebody said that it failed.
Error lookForFailures(KeyValue& store, const std::vector<int>& missing) {
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
  while (!without(served).empty()) {
    if (Clock::now() >= deadline) {
      return {ErrorCode::kTimeout, "Timed out: " + ranksAsText(without(served)) +
                                       " did not come for the group's shared memory" +
                                       (last_problem.empty() ? "" : " (" + last_problem + ")")};
    }
    if (!awaitReadable(hosting.listener.get(), std::min(deadline, Clock::now() + kLookUp))) {
      if (Error error = lookForFailures(store, without(served))) return error;
      continue;
    }
    const UniqueFd guest(
        ::accept4(hosting.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest.valid()) continue;
    Result<int> rank =
        give(guest.get(), hosting.segment->fd(), hosting.segment->magic(),
             hosting.invitation.secret, size, std::min(deadline, Clock::now() + kPerStranger));
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
    // EAGAIN: more ranks at once than the socket's queue holds.
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
    // Even where this fails the others end, at their deadline.
    static_cast<void>(store.set("shm", "error " + hosting.error().text()));
    return hosting.error();
  }
  if (Error error = store.set("shm", hosting.value().invitation.text())) return error;
  if (Error error = serveAll(hosting.value(), store, layout.ranks, deadline)) {
    hosting.value().segment->fail(error);
    return error;
  }
  return std::move(hosting.value().segment);
}

Result<std::shared_ptr<Segment>> attach(KeyValue& store, int rank, int size, Deadline deadline) {
  Result<std::string> text = store.get("shm", deadline);
  if (!text.ok()) return text.error();
  Result<Invitation> invitation = Invitation::parse(text.value());
  if (!invitation.ok()) return invitation.error();
  Result<std::shared_ptr<Segment>> segment = fetch(invitation.value(), rank, size, deadline);
  // Else rank 0 waits for this one until its deadline.
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
              std::min<std::chrono::nanoseconds>(kLookUp, deadline - now));
    }
  }
  return Error::ok();
}

}  // namespace weft::collectives::shm
