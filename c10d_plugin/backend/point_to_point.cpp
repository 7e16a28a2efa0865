#include "c10d_plugin/backend/point_to_point.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/engine/work.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/op_checks.h"

namespace weft::process_group {

using collectives::Mailbox;
using collectives::Tag;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;

namespace {

// Tags of users are 32 bits; the barrier's lie beside them (mailbox.h: below the top bit).
Tag userTag(int tag) { return static_cast<std::uint32_t>(tag); }
Tag barrierTag(std::uint64_t count) { return (Tag{1} << 32) | (count & 0xFFFFFFFFU); }
Tag releaseTag(std::uint64_t count) { return (Tag{2} << 32) | (count & 0xFFFFFFFFU); }

// A Work whose wait() knows the message's own deadline. A message that has not completed by then is
// cancelled: its memory is the caller's again.
class MessageWork final : public WeftWork {
 public:
  MessageWork(int rank, OpInfo info, milliseconds timeout, std::shared_ptr<Mailbox> mailbox)
      : WeftWork(rank, std::move(info)),
        timeout_(timeout),
        deadline_(collectives::deadlineAfter(timeout)),
        mailbox_(std::move(mailbox)) {}

  bool wait(milliseconds asked) override {
    const auto left = std::max(
        milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now()));
    if (asked != kNoTimeout && asked < left) return waitOrGiveUp(asked, asked);
    return waitOrGiveUp(left, timeout_);
  }
  void abort() override { giveUp(Error(ErrorCode::kShutdown, "this operation was aborted")); }

  void posted(Mailbox::Ticket ticket) { ticket_.store(ticket, std::memory_order_release); }
  // A message to `rank`, whose memory must not be read once its caller knows of a failure. If its
  // bytes are in transit, that ends the connection.
  void sendsTo(int rank) { to_ = rank; }

  // The first call sets the outcome.
  void end(std::exception_ptr error) {
    if (ended_.exchange(true)) return;
    if (!settle(std::move(error))) {
      complete();
      return;
    }
    // Callbacks of a future may block; the mailbox's thread may not.
    auto self = c10::intrusive_ptr<MessageWork>::reclaim_copy(this);
    std::thread([self = std::move(self)] { self->complete(); }).detach();
  }

 private:
  bool waitOrGiveUp(milliseconds limit, milliseconds told) {
    if (!waitFor(limit)) {
      giveUp(Error(ErrorCode::kTimeout, "Timed out waiting " + std::to_string(told.count()) +
                                            "ms for " + what_ + " to complete"));
    }
    return WeftWork::wait(kNoTimeout);
  }
  void giveUp(const Error& why) {
    const Mailbox::Ticket ticket = ticket_.load(std::memory_order_acquire);
    if (ticket != 0 && !mailbox_->cancel(ticket, why)) {
      // It is being delivered or sent right now.
      if (to_ >= 0 && !ended_.load()) mailbox_->giveUp(to_, why);
      return;
    }
    try {
      raise(title(), why);
    } catch (...) {
      end(std::current_exception());
    }
  }

 public:
  std::string what_;  // "the receive from rank 3"

 private:
  milliseconds timeout_;
  steady_clock::time_point deadline_;
  std::shared_ptr<Mailbox> mailbox_;
  int to_ = -1;
  std::atomic<Mailbox::Ticket> ticket_{0};
  std::atomic<bool> ended_{false};
};

std::exception_ptr asException(const char* title, const Error& error) {
  try {
    raise(title, error);
  } catch (...) {
    return std::current_exception();
  }
}

// The tensor's memory, kept alive by the tensor.
transport::OwnedBuffer bufferOf(const ContiguousTensor& flat) {
  const auto bytes = flat.bytes();
  return {bytes.data(), bytes.size(), std::make_shared<at::Tensor>(flat.memory())};
}

}  // namespace

PointToPoint::WorkPtr PointToPoint::send(const at::Tensor& tensor, int to, int tag,
                                         milliseconds timeout) {
  constexpr const char* kTitle = "weft:send";
  checkDense(tensor, kTitle);
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kRead);
  auto work = c10::make_intrusive<MessageWork>(
      mailbox_->rank(), OpInfo{c10d::OpType::SEND, kTitle, Tensors{tensor}, {{tensor}}}, timeout,
      mailbox_);
  work->what_ = "the send to rank " + std::to_string(to);
  work->sendsTo(to);
  work->posted(mailbox_->send(to, userTag(tag), bufferOf(flat), [work](const Error& error) {
    work->end(error ? asException(kTitle, error) : nullptr);
  }));
  return work;
}

PointToPoint::WorkPtr PointToPoint::receive(const at::Tensor& tensor, int from, int tag,
                                            milliseconds timeout) {
  const bool any = from == collectives::kAnyRank;
  const char* title = any ? "weft:recvAnySource" : "weft:recv";
  checkDense(tensor, title);
  at::assert_no_internal_overlap(tensor);  // as of expand(): a message could not be written to it
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kWrite);
  auto work = c10::make_intrusive<MessageWork>(
      mailbox_->rank(),
      OpInfo{any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
             title,
             Tensors{tensor},
             {{tensor}}},
      timeout, mailbox_);
  work->what_ = "the receive from " + (any ? "any rank" : "rank " + std::to_string(from));
  const auto ticket = mailbox_->receive(
      from, userTag(tag), bufferOf(flat), [work, flat, title](const Mailbox::Received& got) {
        if (got.error) return work->end(asException(title, got.error));
        work->setSource(got.from);
        std::exception_ptr error;  // no exception may reach the transport's thread
        try {
          flat.writeBack();
        } catch (...) {
          error = std::current_exception();
        }
        work->end(std::move(error));
      });
  work->posted(ticket);
  return work;
}

namespace {

// Messages of no bytes from several ranks, and who has answered.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> here;
  std::vector<std::optional<Error>> failed;

  bool settled() const {
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (!here[i] && !failed[i]) return false;
    }
    return true;
  }
};

std::byte nothing{};
transport::OwnedBuffer noBytes() { return {&nothing, 0, nullptr}; }

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
  const auto arrivals = std::make_shared<Arrivals>();
  arrivals->here.assign(static_cast<std::size_t>(size), false);
  arrivals->failed.resize(static_cast<std::size_t>(size));
  arrivals->here[0] = true;
  std::vector<Mailbox::Ticket> tickets;
  for (int rank = 1; rank < size; ++rank) {
    tickets.push_back(mailbox_->receive(
        rank, barrierTag(count), noBytes(), [arrivals, rank](const Mailbox::Received& got) {
          const std::lock_guard lock(arrivals->mutex);
          if (got.error) {
            arrivals->failed[static_cast<std::size_t>(rank)] = got.error;
          } else {
            arrivals->here[static_cast<std::size_t>(rank)] = true;
          }
          arrivals->changed.notify_all();
        }));
  }
  std::vector<int> absent;
  std::string reasons;
  {
    std::unique_lock lock(arrivals->mutex);
    arrivals->changed.wait_until(lock, deadline, [&] { return arrivals->settled(); });
    for (std::size_t rank = 0; rank < arrivals->here.size(); ++rank) {
      if (arrivals->here[rank]) continue;
      absent.push_back(static_cast<int>(rank));
      if (arrivals->failed[rank]) reasons += "\n " + arrivals->failed[rank]->text();
    }
  }
  for (const Mailbox::Ticket ticket : tickets)
    (void)mailbox_->cancel(ticket, Error(ErrorCode::kTimeout, ""));
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
  struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Error> outcome;
  };
  const auto answer = std::make_shared<Answer>();
  const auto tell = [answer](const Error& error) {
    const std::lock_guard lock(answer->mutex);
    if (!answer->outcome) answer->outcome = error;
    answer->changed.notify_all();
  };
  const auto ticket = mailbox_->receive(0, releaseTag(count), noBytes(),
                                        [tell](const Mailbox::Received& got) { tell(got.error); });
  mailbox_->send(0, barrierTag(count), noBytes(), [tell](const Error& error) {
    if (error) tell(error);
  });
  std::optional<Error> outcome;
  {
    std::unique_lock lock(answer->mutex);
    answer->changed.wait_until(lock, collectives::deadlineAfter(timeout),
                               [&] { return answer->outcome.has_value(); });
    outcome = answer->outcome;
  }
  if (outcome && !*outcome) return;
  (void)mailbox_->cancel(ticket, Error(ErrorCode::kTimeout, ""));
  const std::string why =
      outcome ? outcome->text() : "Timed out after " + std::to_string(timeout.count()) + " ms";
  TORCH_CHECK(false, "[Rank ", mailbox_->rank(), "]: Rank ", mailbox_->rank(),
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original "
              "exception: \n",
              why);
}

}  // namespace weft::process_group
