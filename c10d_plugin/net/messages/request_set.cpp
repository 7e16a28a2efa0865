#include "c10d_plugin/net/messages/request_set.h"

#include <set>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/peer_name.h"

namespace weft::collectives {

RequestSet::RequestSet(Mailbox& mailbox, const std::vector<int>& members, Tag base,
                       const OpFingerprint& fingerprint, Deadline deadline,
                       transport::AdaptiveSpin& spin)
    : mailbox_(mailbox),
      members_(members),
      base_(base),
      fingerprint_(fingerprint),
      label_(fingerprint.label()),
      deadline_(deadline),
      spin_(spin) {}

RequestSet::~RequestSet() { (void)!finish(); }

RequestSet::Part* RequestSet::add(int peer, bool receives) {
  if (failed_.load()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++pending_;
  return &parts_.emplace_back(*this, peer, receives);
}

RequestSet::Part* RequestSet::send(int to, unsigned step, ConstBytes data) {
  Part* const part = add(to, false);
  if (part == nullptr) return nullptr;
  mailbox_.send(
      members_[static_cast<std::size_t>(to)], base_ + step,
      {const_cast<std::byte*>(data.data()), data.size(), nullptr},
      [part](const Error& error) { part->requests_.complete(*part, error); }, label_);
  return part;
}

RequestSet::Part* RequestSet::receive(int from, unsigned step, Bytes into) {
  Part* const part = add(from, true);
  if (part == nullptr) return nullptr;
  mailbox_.receive(
      members_[static_cast<std::size_t>(from)], base_ + step, {into.data(), into.size(), nullptr},
      [part](const Mailbox::Received& received) {
        part->requests_.completeReceive(*part, received);
      },
      label_);
  return part;
}

void RequestSet::completeReceive(Part& part, const Mailbox::Received& received) {
  // An error without a label is the mailbox's own, not a message's.
  if (received.error.code() != ErrorCode::kInvalidArgument || received.label == label_ ||
      received.label == Label())
    return complete(part, received.error);
  const std::string peer = std::to_string(members_[static_cast<std::size_t>(part.peer_)]);
  complete(part, {ErrorCode::kInvalidArgument,
                  "the ranks called different operations: rank " + peer + " called " +
                      OpFingerprint::of(received.label).describe() + ", rank " +
                      std::to_string(mailbox_.rank()) + " called " + fingerprint_.describe()});
}

void RequestSet::complete(Part& part, Error error) {
  // All of it under the lock: the thread that waits for the last message may destroy this set as
  // soon as it is free.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error) {
    if (!error_) error_ = std::move(error);
    failed_.store(true);
  }
  part.done_.store(true, std::memory_order_release);
  --pending_;
  if (waiting_) completed_.notify_all();
}

bool RequestSet::wait(Part* part) {
  if (part == nullptr || failed_.load()) return false;
  const auto ready = [&] { return part->done_.load(std::memory_order_acquire) || failed_.load(); };
  if (ready() || spin_.until(ready)) return !failed_.load();
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_ = true;
  const bool in_time = completed_.wait_until(lock, deadline_, ready);
  waiting_ = false;
  lock.unlock();
  if (!in_time) {
    const auto waited = std::chrono::steady_clock::now() - started_;
    fail({ErrorCode::kTimeout, fingerprint_.describe() + " timed out after " +
                                   transport::seconds(waited) + " on rank " +
                                   std::to_string(mailbox_.rank()) + ", waiting for " + missing() +
                                   "; they did not come, or are slower than the timeout allows"});
  }
  return !failed_.load();
}

// "rank 2" or "ranks 2, 5": the ranks that owe messages, or do not take theirs.
std::string RequestSet::missing() {
  std::set<int> ranks;
  for (const bool receives : {true, false}) {
    for (const Part& part : parts_) {
      if (!part.done_.load() && part.receives_ == receives)
        ranks.insert(members_[static_cast<std::size_t>(part.peer_)]);
    }
    if (!ranks.empty()) break;
  }
  return ranksAsText({ranks.begin(), ranks.end()});
}

void RequestSet::fail(Error error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true);
}

Error RequestSet::finish() {
  for (Part& part : parts_) {
    if (!wait(&part)) break;
  }
  if (failed_.load() && !std::exchange(given_up_, true)) {
    Error error;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      error = error_;
    }
    mailbox_.abort(error);
  }
  drain();
  return error_;
}

// Bounded: after abort() the mailbox completes everything.
void RequestSet::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_ = true;
  completed_.wait(lock, [&] { return pending_ == 0; });
  waiting_ = false;
}

}  // namespace weft::collectives
