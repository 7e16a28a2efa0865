#include "c10d_plugin/p2p/message_work.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/engine/op_error.h"
#include "c10d_plugin/p2p/callback_threads.h"
#include "transport/base/interruption.h"

namespace weft::process_group {

using collectives::Mailbox;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;

namespace {

std::exception_ptr asException(const char* title, const Error& error) {
  try {
    throwAsTorch(title, error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

MessageWork::MessageWork(OpInfo info, std::string what, milliseconds timeout,
                         const std::shared_ptr<Mailbox>& mailbox,
                         std::shared_ptr<WaitingMessages> waiting, TrackedOp recorded, int peer)
    : WeftWork(mailbox->rank(), std::move(info)),
      what_(std::move(what)),
      sends_(retrieveOpType() == c10d::OpType::SEND),
      timeout_(timeout),
      deadline_(transport::deadlineAfter(timeout)),
      mailbox_(mailbox),
      waiting_(std::move(waiting)),
      recorded_(std::move(recorded)),
      peer_(peer) {}

bool MessageWork::wait(milliseconds asked) {
  std::optional<WaitingMessages::Scope> shown;
  if (!isCompleted())
    shown.emplace(waiting_, WaitingMessage{title(), peer_, steady_clock::now(), timeout_});
  const auto left = std::max(
      milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now()));
  if (asked != kNoTimeout && asked < left) return waitOrGiveUp(asked, asked);
  return waitOrGiveUp(left, timeout_);
}

void MessageWork::abort() { giveUp(Error(ErrorCode::kShutdown, "this operation was aborted")); }

void MessageWork::end(std::exception_ptr error) {
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
  if (!runOnOwnThread([self] { self->complete(); })) complete();
}

void MessageWork::fail(const Error& why) { end(asException(title(), why)); }

bool MessageWork::waitOrGiveUp(milliseconds limit, milliseconds told) {
  const transport::Waited ended = waitFor(limit);
  if (ended == transport::Waited::kInterrupted) {
    giveUp(Error(ErrorCode::kInterrupted, what_ + " was " + collectives::kInterrupted));
    transport::raiseInterrupt();
  }
  if (ended == transport::Waited::kLate) {
    giveUp(Error(ErrorCode::kTimeout, "Timed out waiting " + std::to_string(told.count()) +
                                          "ms for " + what_ + " to complete"));
  }
  return WeftWork::wait(kNoTimeout);
}

void MessageWork::giveUp(const Error& why) {
  const std::shared_ptr<Mailbox> mailbox = mailbox_.lock();
  const Mailbox::Ticket ticket = ticket_.load(std::memory_order_acquire);
  if (!mailbox || (ticket != 0 && mailbox->cancel(ticket, why))) return fail(why);
  // It is being delivered or sent right now, and ends with that; or, without a ticket, it ends
  // here, and a copy of it would still be sent.
  if (sends_ && !ended_.load()) mailbox->giveUp(peer_, why);
  if (ticket == 0) fail(why);
}

}  // namespace weft::process_group
