#include "c10d_plugin/engine/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <utility>

#include "c10d_plugin/engine/op_error.h"
#include "transport/base/deadline.h"
#include "transport/base/spin.h"

namespace weft::process_group {

WeftWork::WeftWork(int rank, OpInfo info)
    : c10d::Work(rank, info.type, info.title, info.inputs),
      title_(info.title),
      outputs_(std::move(info.outputs)) {}

transport::Waited WeftWork::waitFor(std::chrono::milliseconds limit) {
  thread_local transport::AdaptiveSpin spin;
  const auto finished = [this] { return finished_.load(std::memory_order_acquire); };
  if (!finished()) spin.until(finished);
  std::unique_lock lock(mutex_);
  const auto done = [this] { return completed_; };
  const auto longest = std::chrono::milliseconds::max();
  return transport::waitInterruptibly(
      cv_, lock, transport::deadlineAfter(limit == kNoTimeout ? longest : limit), done);
}

bool WeftWork::wait(std::chrono::milliseconds timeout) {
  const transport::Waited ended = waitFor(timeout);
  if (ended == transport::Waited::kInterrupted) transport::raiseInterrupt();
  TORCH_CHECK(ended == transport::Waited::kDone, title_, ": Timed out waiting ", timeout.count(),
              "ms for this operation to complete; it goes on until the group's timeout");
  if (const auto error = exception()) throwWithCall(error, call_);
  synchronize();
  return true;
}

void WeftWork::waitUntilCompleted() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
}

std::vector<at::Tensor> WeftWork::result() {
  bool over = false;
  {
    // A callback of the future may ask, which runs before the operation is completed.
    const std::lock_guard lock(mutex_);
    over = settled_;
  }
  TORCH_CHECK(over, title_, ": call wait() before result(): the operation still runs");
  TORCH_CHECK(outputs_.size() <= 1, title_,
              ": result() cannot give a list of lists; use get_future().value()");
  return outputs_.empty() ? std::vector<at::Tensor>() : outputs_.front();
}

int WeftWork::sourceRank() const {
  const int source = source_.load();
  return source >= 0 ? source : c10d::Work::sourceRank();
}

void WeftWork::abort() {
  TORCH_CHECK(false, title_, ": one collective cannot be aborted; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> WeftWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool fill_now = false;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      c10::TypePtr type = c10::ListType::ofTensors();
      if (outputs_.size() > 1) type = c10::ListType::create(std::move(type));
      future_ = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
      fill_now = settled_;
      if (!fill_now) unfilled_ = future_;
    }
    future = future_;
  }
  if (fill_now) fill(future);
  return future;
}

void WeftWork::fill(const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
  if (error_) {
    future->setError(error_);
  } else if (outputs_.size() > 1) {
    future->markCompleted(c10::IValue(outputs_));
  } else {
    future->markCompleted(
        c10::IValue(outputs_.empty() ? std::vector<at::Tensor>() : outputs_.front()));
  }
}

bool WeftWork::settle(std::exception_ptr error, std::optional<OpRecord> call) {
  const std::lock_guard lock(mutex_);
  settled_ = true;
  error_ = std::move(error);
  call_ = std::move(call);
  return static_cast<bool>(future_);
}

void WeftWork::complete() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = std::exchange(unfilled_, nullptr);
  }
  if (future) fill(future);  // before wait() returns: its caller may read the future
  finished_.store(true, std::memory_order_release);
  finish(error_);
}

}  // namespace weft::process_group
