#include "c10d_plugin/p2p/monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "transport/base/interruption.h"

namespace weft::process_group {

using collectives::Mailbox;
using collectives::Tag;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;

namespace {

// Above the tags of users, which are 32 bits (mailbox.h: below the top bit).
Tag barrierTag(std::uint64_t count) { return (Tag{1} << 32) | (count & 0xFFFFFFFFU); }
Tag releaseTag(std::uint64_t count) { return (Tag{2} << 32) | (count & 0xFFFFFFFFU); }

// Whether it comes by then. Throws what Ctrl-C's handler raised; what was posted is left then: it
// has no memory of the caller's, and its tag does not come again.
bool comesBy(const std::future<Error>& outcome, transport::Deadline deadline) {
  while (true) {
    const auto slice = steady_clock::now() + transport::kInterruptEvery;
    if (outcome.wait_until(std::min(slice, deadline)) == std::future_status::ready) return true;
    if (slice >= deadline) return false;
    transport::raiseIfInterrupted();
  }
}

std::byte nothing{};
transport::OwnedBuffer noBytes() { return {&nothing, 0, nullptr}; }

// A message of no bytes that is awaited.
struct Arrival {
  Arrival(Mailbox& mailbox, int from, Tag tag) {
    const auto arrived = std::make_shared<std::promise<Error>>();
    outcome = arrived->get_future();
    ticket = mailbox.receive(from, tag, noBytes(), [arrived](const Mailbox::Received& got) {
      arrived->set_value(got.error);
    });
  }
  std::future<Error> outcome;
  Mailbox::Ticket ticket = 0;
};

void gatherArrivals(Mailbox& mailbox, std::uint64_t count, milliseconds timeout,
                    bool wait_all_ranks) {
  TORCH_CHECK(timeout.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
              timeout.count(), " ms.");
  const auto deadline = transport::deadlineAfter(timeout);
  const int size = mailbox.size();
  std::vector<Arrival> arrivals;
  for (int rank = 1; rank < size; ++rank)
    arrivals.emplace_back(mailbox, rank, barrierTag(count));
  std::vector<int> absent;
  std::string reasons;
  for (int rank = 1; rank < size; ++rank) {
    std::future<Error>& outcome = arrivals[static_cast<std::size_t>(rank) - 1].outcome;
    const bool answered = comesBy(outcome, deadline);
    const Error error = answered ? outcome.get() : Error();
    if (answered && !error) continue;
    absent.push_back(rank);
    if (answered) reasons += "\n " + error.text();
  }
  for (const Arrival& arrival : arrivals)
    (void)mailbox.cancel(arrival.ticket, Error(ErrorCode::kTimeout, ""));
  if (absent.empty()) {
    for (int rank = 1; rank < size; ++rank)
      mailbox.send(rank, releaseTag(count), noBytes(), [](const Error&) {});
    return;
  }
  std::string names;
  for (const int rank : absent)
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
  if (wait_all_ranks) {
    TORCH_CHECK(false, "[Rank 0]: Ranks ", names, " failed to pass monitoredBarrier in ",
                timeout.count(), " ms", reasons);
  }
  TORCH_CHECK(false, "[Rank 0]: Rank ", absent.front(), " failed to pass monitoredBarrier in ",
              timeout.count(), " ms", reasons);
}

void reportArrival(Mailbox& mailbox, std::uint64_t count, milliseconds timeout) {
  // Whatever fails the message below fails this receive too.
  Arrival release(mailbox, 0, releaseTag(count));
  mailbox.send(0, barrierTag(count), noBytes(), [](const Error&) {});
  std::string why = "Timed out after " + std::to_string(timeout.count()) + " ms";
  if (comesBy(release.outcome, transport::deadlineAfter(timeout))) {
    const Error error = release.outcome.get();
    if (!error) return;
    why = error.text();
  }
  (void)mailbox.cancel(release.ticket, Error(ErrorCode::kTimeout, ""));
  TORCH_CHECK(false, "[Rank ", mailbox.rank(), "]: Rank ", mailbox.rank(),
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original "
              "exception: \n",
              why);
}

}  // namespace

void meetAll(Mailbox& mailbox, std::uint64_t count, milliseconds timeout, bool wait_all_ranks) {
  if (mailbox.rank() == 0) {
    gatherArrivals(mailbox, count, timeout, wait_all_ranks);
  } else {
    reportArrival(mailbox, count, timeout);
  }
}

}  // namespace weft::process_group
