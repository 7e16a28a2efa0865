// InlineWaiter: a thread that is about to wait for the answer to a call takes a waiter, and
// completes the call itself when the answer is here.
//
// Otherwise a completer is woken, takes the GIL to make the answer's Python object, completes the
// future, and that wakes the caller, which takes the GIL once more: a wake-up and a
// change of the GIL's owner more for each call, and one completer for all threads that call.
//
// The waiter is its thread's own: it takes it, sends its call (the last one sent before wait()
// counts, because pickling the arguments may send others first), and waits. A call that ends
// another way (a timeout, a lost peer, shutdown) comes to the waiter too, so the wait has the
// call's own bounds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "transport/base/api.h"
#include "transport/base/spin.h"

namespace weft::rpc {

// What completes a call, once.
using Completion = std::function<void()>;

class WEFT_API InlineWaiter {
 public:
  // A handle in a waiter: where the answer to one call goes. Empty: to a completer.
  class Handle {
   public:
    Handle() = default;
    // Any thread. False: nobody waits there for this call; `completion` is left as it was.
    bool give(Completion& completion) const;

   private:
    friend class InlineWaiter;
    std::shared_ptr<InlineWaiter> waiter_;
    std::uint64_t ticket_ = 0;
  };

  // This thread will wait for its next call. Nothing happens on a thread with a state of torch's
  // own (inference mode, a dispatch mode): the answer must not be read under it.
  static void take();
  // For the call that this thread is about to send. `displaced`: what came already for an earlier
  // one sent since take(), to be completed by another thread.
  static Handle claim(Completion& displaced);
  // Waits for the call that was sent, if any was, and completes it. Without the GIL.
  static void wait();
  // Instead of wait(), when the call failed to be sent: what comes goes to a completer, what came
  // already is completed here.
  static void leave();

 private:
  enum class State : std::uint8_t {
    kFree,
    kTaken,   // no call was sent yet
    kCalled,  // one was; its completion may come
    kServed,  // it came
  };
  static InlineWaiter& own();
  void release();

  std::mutex mutex_;
  std::condition_variable served_;
  std::atomic<State> state_{State::kFree};  // written with the lock
  std::uint64_t ticket_ = 0;
  bool asleep_ = false;
  Completion completion_;
  transport::AdaptiveSpin spin_;  // the owner's
};

}  // namespace weft::rpc
