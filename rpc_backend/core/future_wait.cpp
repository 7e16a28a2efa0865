#include "rpc_backend/core/future_wait.h"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "rpc_backend/core/own_process.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

namespace {

// The callback may come after its waiter was interrupted and has gone.
struct Completed {
  std::mutex mutex;
  std::condition_variable cv;
  bool done = false;
};

// Returns before it is complete where no signal could end the wait.
void awaitCompletion(JitFuture& future) {
  if (future.completed()) return;
  OwnProcess::checkLatest("waiting for a call");
  if (!transport::mayBeInterrupted()) return;
  const auto completed = std::make_shared<Completed>();
  future.addCallback(
      [completed](JitFuture&) {
        {
          const std::lock_guard lock(completed->mutex);
          completed->done = true;
        }
        completed->cv.notify_one();
      },
      /*uses_future=*/false);
  // A callback of the user's that comes first may take long; the value is there all the same.
  const auto ready = [&] { return completed->done || future.completed(); };
  std::unique_lock lock(completed->mutex);
  const bool whole = transport::waitInterruptibly(completed->cv, lock, ready);
  lock.unlock();
  if (!whole) transport::raiseInterrupt();
}

}  // namespace

void awaitInterruptibly(JitFuture& future) {
  awaitCompletion(future);
  future.wait();
}

}  // namespace weft::rpc
