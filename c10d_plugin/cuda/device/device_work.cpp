#include "c10d_plugin/cuda/device/device_work.h"

#include <ATen/core/ivalue.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>

#include "transport/base/interruption.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

DeviceWork::DeviceWork(int rank, const What& what, c10::DeviceIndex device,
                       std::shared_ptr<const GroupState> state)
    : c10d::Work(rank, what.type, what.title, what.inputs),
      title_(what.title),
      device_(device),
      state_(std::move(state)),
      outputs_(what.outputs) {}

std::exception_ptr DeviceWork::exception() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

bool DeviceWork::isCompleted() {
  const std::lock_guard lock(mutex_);
  return settled_ && (error_ || end_.query());
}

bool DeviceWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return settled_ && !error_ && end_.query();
}

// In slices: Ctrl-C and the end of the group wake nobody up.
void DeviceWork::waitUntilSettled(milliseconds timeout) {
  const auto started = steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, transport::kInterruptEvery, [this] { return settled_; })) {
    lock.unlock();
    transport::raiseIfInterrupted();
    state_->check(title_);
    TORCH_CHECK(timeout == kNoTimeout || steady_clock::now() - started < timeout, title_,
                ": Timed out waiting ", timeout.count(),
                "ms for this operation to be queued; it goes on until the group's timeout");
    lock.lock();
  }
}

void DeviceWork::waitForDevice() const {
  while (!end_.query()) {
    state_->check(title_);
    transport::raiseIfInterrupted();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool DeviceWork::wait(milliseconds timeout) {
  waitUntilSettled(timeout);
  if (error_) std::rethrow_exception(error_);
  if (state_->failed() && !end_.query()) state_->check(title_);
  synchronize();
  if (opType_ == c10d::OpType::BARRIER) waitForDevice();
  return true;
}

void DeviceWork::synchronize() {
  end_.block(c10::cuda::getCurrentCUDAStream(device_));
  c10d::Work::synchronize();
}

void DeviceWork::abort() {
  TORCH_CHECK(false, title_, ": one operation cannot be aborted; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool fill_now = false;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::ofTensors(), std::vector<c10::Device>{{c10::kCUDA, device_}});
      fill_now = filled_ = settled_;
    }
    future = future_;
  }
  if (fill_now) fill(future);
  return future;
}

// A future records where the current stream stands: one that waits for this operation and nothing
// later.
void DeviceWork::fill(const c10::intrusive_ptr<c10::ivalue::Future>& future) try {
  if (error_) return future->setError(error_);
  const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_);
  const c10::cuda::CUDAStreamGuard guard(stream);
  end_.block(stream);
  future->markCompleted(c10::IValue(outputs_));
} catch (...) {
  future->setErrorIfNeeded(std::current_exception());
}

bool DeviceWork::settle(std::exception_ptr error, const c10::cuda::CUDAStream& stream) {
  try {
    if (!error) end_.record(stream);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  settled_ = true;
  return static_cast<bool>(future_);
}

void DeviceWork::complete() {
  c10::intrusive_ptr<c10::ivalue::Future> unfilled;
  {
    const std::lock_guard lock(mutex_);
    if (future_ && !filled_) unfilled = future_;
    filled_ = true;
  }
  if (unfilled) fill(unfilled);
  finish(error_);
}

}  // namespace weft::process_group
