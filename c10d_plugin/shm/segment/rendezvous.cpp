#include "c10d_plugin/shm/segment/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/shm/segment/handover.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/auth/auth_key.h"
#include "transport/auth/digest.h"
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

// --- rank 0 ---

struct Hosting {
  std::shared_ptr<Segment> segment;
  std::string name;  // of the socket
  UniqueFd listener;
};

Result<Hosting> prepare(const Layout& layout) {
  Hosting hosting;
  std::array<std::uint8_t, 12> name{};
  if (Error error = transport::fillRandom(name)) return error;
  hosting.name = "weft-group-" + transport::toHex(name);
  Result<transport::BoundSocket> bound = transport::listenUnix(hosting.name);
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

Error serveAll(const Hosting& hosting, const AuthKey& key, KeyValue& store, Deadline deadline) {
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
    const Result<int> rank = giveMemory(std::move(guest), *hosting.segment, key, hosting.name,
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

Error malformed() { return {ErrorCode::kProtocol, "malformed rendezvous message from rank 0"}; }

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
Result<std::shared_ptr<Segment>> fetch(const std::string& socket_name, const AuthKey& key, int rank,
                                       int size, Deadline deadline) {
  Result<UniqueFd> dialled = dial(socket_name, deadline);
  if (!dialled.ok()) return dialled.error();
  Result<GivenMemory> memory =
      takeMemory(std::move(dialled).value(), key, socket_name, rank, deadline);
  if (!memory.ok()) return memory.error();
  const Layout& layout = memory.value().layout;
  if (!layout.fits(size)) return malformed();
  Result<std::shared_ptr<Segment>> segment =
      Segment::open(layout, memory.value().magic, std::move(memory.value().fd));
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
  Result<Hosting> hosting = prepare(layout);
  if (!hosting.ok()) {
    // If this fails too, the others end at their deadline.
    static_cast<void>(store.set("shm", joinTexts({"", hosting.error().text()})));
    return hosting.error();
  }
  if (Error error = store.set("shm", joinTexts({hosting.value().name, ""}))) return error;
  if (Error error = serveAll(hosting.value(), key, store, deadline)) {
    hosting.value().segment->fail(error);
    return error;
  }
  return std::move(hosting.value().segment);
}

Result<std::shared_ptr<Segment>> attach(const AuthKey& key, KeyValue& store, int rank, int size,
                                        Deadline deadline) {
  Result<std::string> text = store.get("shm", deadline);
  if (!text.ok()) return text.error();
  const auto said = splitTexts(text.value());
  if (!said || said->size() != 2) return malformed();
  if (const std::string& why = (*said)[1]; !why.empty())
    return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
  Result<std::shared_ptr<Segment>> segment = fetch((*said)[0], key, rank, size, deadline);
  // Otherwise rank 0 would wait for this rank until its deadline.
  if (!segment.ok()) static_cast<void>(store.set(failedKey(rank), segment.error().text()));
  return segment;
}

}  // namespace weft::collectives::shm
