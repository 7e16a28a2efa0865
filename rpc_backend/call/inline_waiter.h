// InlineWaiter: lets a thread that waits for the answer to its call complete that call itself.
//
// Without it a completer thread wakes up, takes the GIL to make the answer's Python object, and
// completes the future, which wakes the caller, which takes the GIL again. With it the waiting
// thread also drives the endpoint, if no other waiter does, so it reads the answer itself and no
// other thread wakes up.
//
// Each thread has one waiter. It calls take(), sends its call, and calls wait(). The waiter waits
// for the last call sent before wait(), because pickling the arguments may send other calls first.
// A call that ends in another way (a timeout, a lost peer, shutdown) ends the wait, too.
//
// The handler of a signal may itself wait for the call that it has interrupted, as rpc.shutdown()
// waits for all. So where handlers run, on the main thread, the waiter gives up before it lets one
// run, and a completer completes the call.
//
// Threads: the static members: the thread whose waiter it is; Handle::give(): any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "transport/base/api.h"
#include "transport/base/deadline.h"
#include "transport/base/spin.h"
#include "transport/endpoint.h"

namespace weft::rpc {

// What completes a call, once.
using Completion = std::function<void()>;

class WEFT_API InlineWaiter {
 public:
  // The waiter that gets the answer to one call. Empty: a completer gets it.
  class Handle {
   public:
    Handle() = default;
    // False: no thread waits for this call any more, and `completion` is unchanged.
    bool give(Completion& completion) const;

   private:
    friend class InlineWaiter;
    std::shared_ptr<InlineWaiter> waiter_;
    std::uint64_t ticket_ = 0;
  };

  // This thread will wait for its next call. Does nothing on a thread on which torch has set a mode
  // (inference mode, a dispatch mode), under which the answer must not be read.
  static void take();
  // The handle for the call that this thread is about to send; empty if the waiter is not taken.
  // `displaced`: gets the completion of an earlier call since take(), if it has come already;
  // another thread must run it. `endpoint`: brings the answer; null: it comes another way.
  static Handle claim(Completion& displaced,
                      const std::shared_ptr<transport::Endpoint>& endpoint = nullptr);
  // Waits for the call that was sent, if any was, and completes it; on the main thread for a moment
  // only, so wait for the call's future then. Without the GIL.
  static void wait();
  // Instead of wait(), if the call could not be sent. A completion that has come already runs here;
  // a completer gets later ones.
  static void leave();

 private:
  enum class State : std::uint8_t {
    kFree,
    kTaken,   // no call was sent yet
    kCalled,  // a call was sent; its completion may come
    kServed,  // the completion came
  };
  // How the thread waits, so that give() can wake it.
  enum class Waits : std::uint8_t { kNot, kDriving, kAsleep };

  static InlineWaiter& own();
  // Whether the call's completion has come.
  bool served() const { return state_.load(std::memory_order_acquire) != State::kCalled; }
  // Both wait for the completion, until `end` at the latest.
  void drive(transport::Deadline end);  // returns early if another thread drives already
  void sleep(transport::Deadline end);
  void release();

  std::mutex mutex_;
  std::condition_variable served_;
  std::atomic<State> state_{State::kFree};  // written with the lock
  std::uint64_t ticket_ = 0;
  Waits waits_ = Waits::kNot;
  std::shared_ptr<transport::Endpoint> endpoint_;
  Completion completion_;
  transport::AdaptiveSpin spin_;  // the owner's
};

// Takes this thread's waiter for a scope, in which the thread sends its call and waits with
// InlineWaiter::wait(). Leaves the waiter even if the call cannot be sent.
class ScopedInlineWaiter {
 public:
  ScopedInlineWaiter() { InlineWaiter::take(); }
  ~ScopedInlineWaiter() { InlineWaiter::leave(); }
  ScopedInlineWaiter(const ScopedInlineWaiter&) = delete;
  ScopedInlineWaiter& operator=(const ScopedInlineWaiter&) = delete;
};

}  // namespace weft::rpc
