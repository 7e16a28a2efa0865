#include "c10d_plugin/backend/point_to_point.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "c10d_plugin/engine/call_text.h"
#include "c10d_plugin/engine/work.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "transport/base/interruption.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"

namespace weft::process_group {

using collectives::Label;
using collectives::Mailbox;
using collectives::Tag;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;

namespace {

// Tags of users are 32 bits; the barrier's are beside them (mailbox.h: below the top bit).
Tag userTag(int tag) { return static_cast<std::uint32_t>(tag); }
Tag barrierTag(std::uint64_t count) { return (Tag{1} << 32) | (count & 0xFFFFFFFFU); }
Tag releaseTag(std::uint64_t count) { return (Tag{2} << 32) | (count & 0xFFFFFFFFU); }

// Set in the label of every message with a tensor, so that none equals the empty label.
constexpr std::uint64_t kIsType = std::uint64_t{1} << 16U;

// Both sides of a message name one type of elements.
Label labelOf(const at::Tensor& tensor) {
  return {{kIsType | static_cast<std::uint64_t>(tensor.scalar_type()), 0, 0}};
}

// "float32"; takes any label: a peer may have written it.
std::string typeText(const Label& label) {
  try {
    const auto type = static_cast<c10::ScalarType>(label.words[0] & 0xFFU);
    return std::string(c10::getDtypeNames(type).first);  // torch 2.15 gives a string_view
  } catch (const std::exception&) {
    return "an unknown type";
  }
}

// Why a receive with this label, of `bytes` bytes, failed.
Error whyFailed(const Mailbox::Received& got, const Label& wanted, std::size_t bytes) {
  // An error without a label is the mailbox's own, not a message's.
  if (got.label == Label() || got.label == wanted) return got.error;
  return {got.error.code(), "rank " + std::to_string(got.from) + " sent " +
                                transport::bytesText(got.size) + " of " + typeText(got.label) +
                                " where " + std::to_string(bytes) + " of " + typeText(wanted) +
                                " were expected; both sides must name the same type and size"};
}

std::exception_ptr asException(const char* title, const Error& error) {
  try {
    raise(title, error);
  } catch (...) {
    return std::current_exception();
  }
}

// A Work whose wait() knows the message's own deadline. A message that has not completed by then is
// cancelled: its memory is the caller's again.
class MessageWork final : public WeftWork {
 public:
  // `what`: "the receive from rank 3". `peer`: the sender, -1 for any; or the receiver, who must
  // not read the memory once its caller knows of a failure: if the bytes are in transit, that ends
  // the connection.
  MessageWork(OpInfo info, std::string what, milliseconds timeout, std::shared_ptr<Mailbox> mailbox,
              std::shared_ptr<WaitingMessages> waiting, RecordedOp recorded, int peer)
      : WeftWork(mailbox->rank(), std::move(info)),
        what_(std::move(what)),
        sends_(retrieveOpType() == c10d::OpType::SEND),
        timeout_(timeout),
        deadline_(collectives::deadlineAfter(timeout)),
        mailbox_(std::move(mailbox)),
        waiting_(std::move(waiting)),
        recorded_(std::move(recorded)),
        peer_(peer) {}

  bool wait(milliseconds asked) override {
    std::optional<WaitingMessages::Scope> shown;
    if (!isCompleted())
      shown.emplace(waiting_, WaitingMessage{title(), peer_, steady_clock::now(), timeout_});
    const auto left = std::max(
        milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now()));
    if (asked != kNoTimeout && asked < left) return waitOrGiveUp(asked, asked);
    return waitOrGiveUp(left, timeout_);
  }
  void abort() override { giveUp(Error(ErrorCode::kShutdown, "this operation was aborted")); }

  void posted(Mailbox::Ticket ticket) { ticket_.store(ticket, std::memory_order_release); }

  // The first call sets the outcome.
  void end(std::exception_ptr error) {
    if (ended_.exchange(true)) return;
    std::optional<OpRecord> call;
    if (error) {
      OpRecorder::get().countFailure();
      call = recorded_.record();
    }
    recorded_.end(error != nullptr);
    if (!settle(std::move(error), std::move(call))) {
      complete();
      return;
    }
    // Callbacks of a future may block; the mailbox's thread may not, unless there is no other.
    const auto self = c10::intrusive_ptr<MessageWork>::reclaim_copy(this);
    if (transport::thrownBy([&] { std::thread([self] { self->complete(); }).detach(); }))
      complete();
  }

 private:
  bool waitOrGiveUp(milliseconds limit, milliseconds told) {
    const transport::Waited ended = waitFor(limit);
    if (ended == transport::Waited::kInterrupted) {
      giveUp(Error(ErrorCode::kInterrupted, what_ + " was interrupted (Ctrl-C)"));
      transport::raiseInterrupt();
    }
    if (ended == transport::Waited::kLate) {
      giveUp(Error(ErrorCode::kTimeout, "Timed out waiting " + std::to_string(told.count()) +
                                            "ms for " + what_ + " to complete"));
    }
    return WeftWork::wait(kNoTimeout);
  }
  void giveUp(const Error& why) {
    const Mailbox::Ticket ticket = ticket_.load(std::memory_order_acquire);
    if (ticket == 0 || mailbox_->cancel(ticket, why)) return end(asException(title(), why));
    // It is being delivered or sent right now.
    if (sends_ && !ended_.load()) mailbox_->giveUp(peer_, why);
  }

  const std::string what_;
  const bool sends_;
  const milliseconds timeout_;
  const steady_clock::time_point deadline_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<WaitingMessages> waiting_;
  RecordedOp recorded_;
  const int peer_;
  std::atomic<Mailbox::Ticket> ticket_{0};
  std::atomic<bool> ended_{false};
};

// The tensor's memory, kept alive by the tensor.
transport::OwnedBuffer bufferOf(const ContiguousTensor& flat) {
  const auto bytes = flat.bytes();
  return {bytes.data(), bytes.size(), std::make_shared<at::Tensor>(flat.memory())};
}

}  // namespace

PointToPoint::WorkPtr PointToPoint::send(const at::Tensor& tensor, int to, int tag,
                                         milliseconds timeout, RecordedOp recorded) {
  constexpr const char* kTitle = "weft:send";
  checkDense(tensor, kTitle);
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kRead);
  auto work = c10::make_intrusive<MessageWork>(
      OpInfo{c10d::OpType::SEND, kTitle, Tensors{tensor}, {{tensor}}},
      "the send to rank " + std::to_string(to), timeout, mailbox_, waiting_, std::move(recorded),
      to);
  work->posted(mailbox_->send(
      to, userTag(tag), bufferOf(flat),
      [work](const Error& error) { work->end(error ? asException(kTitle, error) : nullptr); },
      labelOf(tensor)));
  return work;
}

PointToPoint::WorkPtr PointToPoint::receive(const at::Tensor& tensor, int from, int tag,
                                            milliseconds timeout, RecordedOp recorded) {
  const bool any = from == collectives::kAnyRank;
  const char* title = any ? "weft:recvAnySource" : "weft:recv";
  checkDense(tensor, title);
  at::assert_no_internal_overlap(tensor);  // as of expand(): a message could not be written to it
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kWrite);
  const auto type = any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  auto work = c10::make_intrusive<MessageWork>(
      OpInfo{type, title, Tensors{tensor}, {{tensor}}},
      "the receive from " + (any ? "any rank" : "rank " + std::to_string(from)), timeout, mailbox_,
      waiting_, std::move(recorded), from);
  const Label label = labelOf(tensor);
  const auto ticket = mailbox_->receive(
      from, userTag(tag), bufferOf(flat),
      [work, flat, title, label](const Mailbox::Received& got) {
        if (got.error)
          return work->end(asException(title, whyFailed(got, label, flat.bytes().size())));
        work->setSource(got.from);
        std::exception_ptr error;  // no exception may reach the transport's thread
        try {
          flat.writeBack();
        } catch (...) {
          error = std::current_exception();
        }
        work->end(std::move(error));
      },
      label);
  work->posted(ticket);
  return work;
}

namespace {

// Whether it comes by then. Throws what Ctrl-C's handler raised; what was posted is left then: it
// has no memory of the caller's, and its tag does not come again.
bool comesBy(const std::future<Error>& outcome, collectives::Deadline deadline) {
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

}  // namespace

void PointToPoint::close() { mailbox_->close(); }

void PointToPoint::monitoredBarrier(milliseconds timeout, bool wait_all_ranks) {
  const std::uint64_t count = barriers_.fetch_add(1);
  if (mailbox_->rank() == 0) {
    gatherArrivals(count, timeout, wait_all_ranks);
  } else {
    reportArrival(count, timeout);
  }
}

void PointToPoint::gatherArrivals(std::uint64_t count, milliseconds timeout, bool wait_all_ranks) {
  TORCH_CHECK(timeout.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
              timeout.count(), " ms.");
  const auto deadline = collectives::deadlineAfter(timeout);
  const int size = mailbox_->size();
  std::vector<Arrival> arrivals;
  for (int rank = 1; rank < size; ++rank)
    arrivals.emplace_back(*mailbox_, rank, barrierTag(count));
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
    (void)mailbox_->cancel(arrival.ticket, Error(ErrorCode::kTimeout, ""));
  if (absent.empty()) {
    for (int rank = 1; rank < size; ++rank)
      mailbox_->send(rank, releaseTag(count), noBytes(), [](const Error&) {});
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

void PointToPoint::reportArrival(std::uint64_t count, milliseconds timeout) {
  // Whatever fails the message below fails this receive too.
  Arrival release(*mailbox_, 0, releaseTag(count));
  mailbox_->send(0, barrierTag(count), noBytes(), [](const Error&) {});
  std::string why = "Timed out after " + std::to_string(timeout.count()) + " ms";
  if (comesBy(release.outcome, collectives::deadlineAfter(timeout))) {
    const Error error = release.outcome.get();
    if (!error) return;
    why = error.text();
  }
  (void)mailbox_->cancel(release.ticket, Error(ErrorCode::kTimeout, ""));
  TORCH_CHECK(false, "[Rank ", mailbox_->rank(), "]: Rank ", mailbox_->rank(),
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original "
              "exception: \n",
              why);
}

}  // namespace weft::process_group
