// RequestSet: sends and receives the messages of one operation, and waits for them.
//
// The memory of the messages belongs to the caller. So all completions have run before finish()
// returns, however the operation ends. An operation that fails aborts the mailbox, so that no
// completion takes long and every other rank learns why.
//
// Threads: one thread sends, receives and waits; completions run on the mailbox's thread.
// Failure: the first error ends the operation; finish() returns it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/core/wait_times.h"
#include "transport/base/spin.h"

namespace weft::collectives {

class RequestSet {
 public:
  // How many tags an operation has.
  static constexpr unsigned kTagBits = 16;
  static constexpr Tag kTags = Tag{1} << kTagBits;

  // One message.
  struct Request {
    Request(int other, bool is_receive) : peer(other), receives(is_receive) {}

    const int peer;
    const bool receives;
    std::atomic<bool> done{false};
  };

  // `members`: mailbox ranks by rank of the operation. `base`: the first of kTags tags that only
  // this set uses. `wait_times`: notes, by rank of the operation, for whom it waits.
  RequestSet(Mailbox& mailbox, const std::vector<int>& members, Tag base,
             const OpFingerprint& fingerprint, Deadline deadline, transport::AdaptiveSpin& spin,
             WaitTimes& wait_times);
  ~RequestSet();
  RequestSet(const RequestSet&) = delete;
  RequestSet& operator=(const RequestSet&) = delete;

  // Messages of one step between the same ranks keep their order. After a failure these do nothing
  // and return null.
  Request* send(int to, unsigned step, ConstBytes data);
  Request* receive(int from, unsigned step, Bytes into);
  // False: the operation has failed; finish() says why.
  bool wait(Request* request);
  // Waits for all messages.
  Error finish();

 private:
  Request* add(int peer, bool receives);
  void complete(Request& request, Error error);
  // Once.
  void abortMailbox(const Error& error);
  // Tells the mailbox that the operation runs, or that it is over. Fails the operation if that
  // shows that another rank called something else.
  void tellStage(bool over);
  Error whyFailed(const Request& request, const Mailbox::Received& received) const;
  std::string missing() const;

  Mailbox& mailbox_;
  const std::vector<int>& members_;
  const Tag base_;
  const OpFingerprint fingerprint_;
  const Label label_;
  const Deadline deadline_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  transport::AdaptiveSpin& spin_;
  WaitTimes& wait_times_;

  std::deque<Request> requests_;
  std::atomic<bool> failed_{false};
  // What the caller's thread has told the mailbox: that the operation waits, that it has received
  // all, or nothing more, because the mailbox knows its own error.
  enum class Told : std::uint8_t { kNothing, kRuns, kOver, kAborted } told_ = Told::kNothing;

  std::mutex mutex_;
  std::condition_variable completed_;
  std::size_t pending_ = 0;  // guarded by mutex_
  bool waiting_ = false;     // likewise
  Error error_;              // likewise; the first
};

}  // namespace weft::collectives
