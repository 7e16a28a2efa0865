#include "c10d_plugin/net/messages/request_set.h"

#include <set>
#include <utility>

#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/interruption.h"
#include "transport/base/peer_name.h"

namespace weft::collectives {

RequestSet::RequestSet(Mailbox& mailbox, const std::vector<int>& members, Tag base,
                       const OpFingerprint& fingerprint, Deadline deadline,
                       transport::AdaptiveSpin& spin, WaitTimes& wait_times)
    : mailbox_(mailbox),
      members_(members),
      base_(base),
      fingerprint_(fingerprint),
      label_(fingerprint.label()),
      deadline_(deadline),
      spin_(spin),
      wait_times_(wait_times) {}

RequestSet::~RequestSet() { (void)!finish(); }

RequestSet::Request* RequestSet::add(int peer, bool receives) {
  if (failed_.load()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++pending_;
  return &requests_.emplace_back(peer, receives);
}

RequestSet::Request* RequestSet::send(int to, unsigned step, ConstBytes data) {
  Request* const request = add(to, false);
  if (request == nullptr) return nullptr;
  mailbox_.send(
      members_[static_cast<std::size_t>(to)], base_ + step,
      {const_cast<std::byte*>(data.data()), data.size(), nullptr},
      [this, request](const Error& error) { complete(*request, error); }, label_);
  return request;
}

RequestSet::Request* RequestSet::receive(int from, unsigned step, Bytes into) {
  Request* const request = add(from, true);
  if (request == nullptr) return nullptr;
  mailbox_.receive(
      members_[static_cast<std::size_t>(from)], base_ + step, {into.data(), into.size(), nullptr},
      [this, request](const Mailbox::Received& received) {
        complete(*request, whyFailed(*request, received));
      },
      label_);
  return request;
}

Error RequestSet::whyFailed(const Request& request, const Mailbox::Received& received) const {
  // An error without a label is the mailbox's own, not a message's.
  if (received.error.code() != ErrorCode::kInvalidArgument || received.label == label_ ||
      received.label == Label())
    return received.error;
  return {ErrorCode::kInvalidArgument,
          differentCalls(members_[static_cast<std::size_t>(request.peer)], received.label,
                         mailbox_.rank(), label_)};
}

void RequestSet::complete(Request& request, Error error) {
  // All of this holds the lock, because the thread that waits for the last message may destroy this
  // set as soon as the lock is free.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error) {
    if (!error_) error_ = std::move(error);
    failed_.store(true);
  }
  request.done.store(true, std::memory_order_release);
  --pending_;
  if (waiting_) completed_.notify_all();
}

void RequestSet::tellStage(bool over) {
  told_ = over ? Told::kOver : Told::kRuns;
  Error error = mailbox_.reached({base_, base_ + kTags - 1, label_, over});
  if (!error) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true);
}

bool RequestSet::wait(Request* request) {
  if (request == nullptr || failed_.load()) return false;
  const auto ready = [&] {
    return request->done.load(std::memory_order_acquire) || failed_.load();
  };
  if (ready() || spin_.until(ready)) return !failed_.load();
  if (told_ == Told::kNothing) tellStage(false);
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_ = true;
  const auto began = std::chrono::steady_clock::now();
  const auto ended = transport::waitInterruptibly(completed_, lock, deadline_, ready);
  waiting_ = false;
  wait_times_.add(request->peer, std::chrono::steady_clock::now() - began);
  if (ended == transport::Waited::kInterrupted) {
    // Replaces another error, because this thread throws what the handler raised.
    error_ = {ErrorCode::kInterrupted,
              interruptedText(mailbox_.rank(), "it ran " + fingerprint_.describe())};
    failed_.store(true);
  } else if (ended == transport::Waited::kLate) {
    const auto waited = std::chrono::steady_clock::now() - started_;
    if (!error_)
      error_ = {ErrorCode::kTimeout, missing() + " did not come to " + fingerprint_.describe() +
                                         " in time; rank " + std::to_string(mailbox_.rank()) +
                                         " waited " + transport::seconds(waited)};
    failed_.store(true);
  }
  return !failed_.load();
}

// "rank 2" or "ranks 2, 5": the ranks that owe messages, else those that do not take theirs.
std::string RequestSet::missing() const {
  std::set<int> ranks;
  for (const bool receives : {true, false}) {
    for (const Request& request : requests_) {
      if (!request.done.load() && request.receives == receives)
        ranks.insert(members_[static_cast<std::size_t>(request.peer)]);
    }
    if (!ranks.empty()) break;
  }
  return ranksAsText({ranks.begin(), ranks.end()});
}

Error RequestSet::finish() {
  for (Request& request : requests_) {
    if (!wait(&request)) break;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (failed_.load()) {
    const Error error = error_;
    lock.unlock();
    abortMailbox(error);
    lock.lock();
  }
  // Bounded: after abort() the mailbox completes everything.
  waiting_ = true;
  completed_.wait(lock, [&] { return pending_ == 0; });
  waiting_ = false;
  if (error_ || told_ == Told::kOver) return error_;
  lock.unlock();
  tellStage(true);
  if (failed_.load()) abortMailbox(error_);  // no completion is left that could change error_
  return error_;
}

void RequestSet::abortMailbox(const Error& error) {
  if (std::exchange(told_, Told::kAborted) != Told::kAborted) mailbox_.abort(error);
}

}  // namespace weft::collectives
