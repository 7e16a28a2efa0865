// InlineWaiter: a thread that is about to wait for the answer to a call takes its waiter, and then
// completes the call itself when the answer is here.
//
// Otherwise a completer thread wakes up, takes the GIL to make the answer's Python object and
// completes the future; that wakes the caller, which takes the GIL once more.
//
// While it waits it drives the endpoint, if no other waiter does: then it reads the answer itself,
// and no other thread wakes up.
//
// Each thread has one waiter: it takes it, sends its call, and waits. The last call sent before
// wait() counts, because pickling the arguments may send others first. A call that ends another way
// (a timeout, a lost peer, shutdown) comes to the waiter too, so the wait is bounded as the call
// is.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "transport/base/api.h"
#include "transport/base/spin.h"
#include "transport/endpoint.h"

namespace weft::rpc {

// What completes a call, once.
using Completion = std::function<void()>;

class WEFT_API InlineWaiter {
 public:
  // Where the answer to one call goes. Empty: to a completer.
  class Handle {
   public:
    Handle() = default;
    // Any thread. False: nobody waits there for this call; `completion` is left as it was.
    bool give(Completion& completion) const;
    // Of the same call; no two empty ones are.
    bool sameCall(const Handle& other) const {
      return waiter_ != nullptr && waiter_ == other.waiter_ && ticket_ == other.ticket_;
    }

   private:
    friend class InlineWaiter;
    std::shared_ptr<InlineWaiter> waiter_;
    std::uint64_t ticket_ = 0;
  };

  // This thread will wait for its next call. It does nothing on a thread with a state of torch's
  // own (inference mode, a dispatch mode), under which the answer must not be read.
  static void take();
  // For the call that this thread is about to send. `displaced`: the completion that came already
  // for an earlier call since take(); another thread must run it. `endpoint`: what brings the
  // answer; null: it comes another way.
  static Handle claim(Completion& displaced,
                      const std::shared_ptr<transport::Endpoint>& endpoint = nullptr);
  // The last one that this thread claimed and has not waited for; empty: none.
  static Handle claimed();
  // Waits for the call that was sent, if any was, and completes it. Without the GIL. On Ctrl-C it
  // throws what the handler raised, and the call's completion goes to a completer.
  static void wait();
  // Instead of wait(), when the call could not be sent: later completions go to a completer, one
  // that came already runs here.
  static void leave();

 private:
  enum class State : std::uint8_t {
    kFree,
    kTaken,   // no call was sent yet
    kCalled,  // one was; its completion may come
    kServed,  // it came
  };
  static InlineWaiter& own();
  // The call's completion has come.
  bool served() const { return state_.load(std::memory_order_acquire) != State::kCalled; }
  // Both return when it has come; false: a person's Ctrl-C came first.
  bool drive();  // or when another thread drives already
  bool sleep();
  void release();

  std::mutex mutex_;
  std::condition_variable served_;
  std::atomic<State> state_{State::kFree};  // written with the lock
  std::uint64_t ticket_ = 0;
  bool asleep_ = false;
  bool drives_ = false;
  std::shared_ptr<transport::Endpoint> endpoint_;
  Completion completion_;
  transport::AdaptiveSpin spin_;  // the owner's
};

// Takes the waiter of this thread for a scope: the thread sends its call and waits with
// InlineWaiter::wait(). When the call cannot be sent, the waiter is left all the same.
class ScopedInlineWaiter {
 public:
  ScopedInlineWaiter() { InlineWaiter::take(); }
  ~ScopedInlineWaiter() { InlineWaiter::leave(); }
  ScopedInlineWaiter(const ScopedInlineWaiter&) = delete;
  ScopedInlineWaiter& operator=(const ScopedInlineWaiter&) = delete;
};

}  // namespace weft::rpc
