#include "c10d_plugin/shm/segment/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/shm/segment/handover.h"
#include "c10d_plugin/shm/segment/invitation.h"
#include "c10d_plugin/store/record.h"
#include "transport/auth/auth_key.h"
#include "transport/auth/digest.h"
#include "transport/base/check.h"
#include "transport/base/interruption.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"
#include "transport/io/socket.h"

namespace weft::collectives::shm {
namespace {

using transport::AuthKey;
using transport::systemError;
using transport::UniqueFd;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{100};
constexpr milliseconds kPerGuest{1000};

std::string failedKey(int rank) { return "shm-failed/" + std::to_string(rank); }

// Of the whole invitation: who can change it on its way through the Store, and has no key, gains
// nothing but that the ranks do not meet.
Result<AuthKey> secretFrom(const AuthKey& key, const Invitation& invitation) {
  WEFT_CHECK(key.valid(), "no endpoint opens without the group's key");
  const std::string text = "weft shared memory " + invitation.toText();
  return AuthKey::fromHex(
      transport::toHex(transport::hmacSha256(key, std::as_bytes(std::span(text)))));
}

// --- rank 0 ---

struct Hosting {
  std::shared_ptr<Segment> segment;
  UniqueFd listener;
  Invitation invitation;
  AuthKey secret;
};

Result<Hosting> prepare(const Layout& layout, const AuthKey& key) {
  Hosting hosting;
  std::array<std::uint8_t, 12> name{};
  if (Error error = transport::fillRandom(name)) return error;
  hosting.invitation = {"weft-group-" + transport::toHex(name), layout.buffer_bytes,
                        layout.small_bytes, layout.heap_bytes};
  const Result<AuthKey> secret = secretFrom(key, hosting.invitation);
  if (!secret.ok()) return secret.error();
  hosting.secret = secret.value();
  Result<transport::BoundSocket> bound = transport::listenUnix(hosting.invitation.socket);
  if (!bound.ok()) return bound.error();
  hosting.listener = std::move(bound.value().fd);
  Result<std::shared_ptr<Segment>> segment = Segment::create(layout);
  if (!segment.ok()) return segment.error();
  hosting.segment = std::move(segment.value());
  if (Error error = hosting.segment->enter(0)) return error;
  return hosting;
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
                                       " did not join the group's shared memory" +
                                       (last_problem.empty() ? "" : " (" + last_problem + ")")};
    }
    const auto ended =
        awaitReadable(hosting.listener.get(), std::min(deadline, Clock::now() + kPoll));
    if (ended == transport::Waited::kInterrupted)
      return {ErrorCode::kInterrupted, interruptedText(0, "the group was made")};
    if (ended == transport::Waited::kLate) {
      if (Error error = findFailure(store, missing)) return error;
      continue;
    }
    UniqueFd guest(
        ::accept4(hosting.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest.valid()) continue;
    const Result<int> rank = giveMemory(std::move(guest), *hosting.segment, hosting.secret,
                                        std::min(deadline, Clock::now() + kPerGuest));
    if (rank.ok()) {
      std::erase(missing, rank.value());
    } else if (rank.error().code() == ErrorCode::kInterrupted) {
      return rank.error();
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
Result<std::shared_ptr<Segment>> fetch(const Invitation& invitation, const AuthKey& key, int rank,
                                       int size, Deadline deadline) {
  const Result<AuthKey> secret = secretFrom(key, invitation);
  if (!secret.ok()) return secret.error();
  Result<UniqueFd> dialled = dial(invitation.socket, deadline);
  if (!dialled.ok()) return dialled.error();
  Result<GivenMemory> memory =
      takeMemory(std::move(dialled).value(), secret.value(), rank, deadline);
  if (!memory.ok()) return memory.error();
  Result<std::shared_ptr<Segment>> segment = Segment::open(
      Layout::of(size, invitation.buffer_bytes, invitation.small_bytes, invitation.heap_bytes),
      memory.value().magic, std::move(memory.value().fd));
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
  Result<Invitation> invitation = Invitation::fromText(text.value());
  if (!invitation.ok()) return invitation.error();
  Result<std::shared_ptr<Segment>> segment = fetch(invitation.value(), key, rank, size, deadline);
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
