#include "rpc_backend/python/gil_probe.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <thread>
#include <utility>

#include "third_party/torch/interpreter.h"

namespace weft::rpc {

bool GilProbe::Attempt::succeedsWithin(int slices) {
  std::unique_lock lock(mutex_);
  while (!done_ && slices-- > 0)
    changed_.wait_for(lock, kSlice);
  return done_;
}

bool GilProbe::Attempt::hasSucceeded() {
  const std::lock_guard lock(mutex_);
  return done_;
}

void GilProbe::Attempt::make() {
  pthread_setname_np(pthread_self(), "weft-gil-probe");
  if (!interpreterEnds()) const pybind11::gil_scoped_acquire gil;
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

std::shared_ptr<GilProbe::Attempt> GilProbe::begin() {
  const std::lock_guard lock(mutex_);
  if (attempt_ == nullptr || attempt_->hasSucceeded()) {
    auto next = std::make_shared<Attempt>();
    std::thread([next] { next->make(); }).detach();
    attempt_ = std::move(next);
  }
  return attempt_;
}

void GilProbe::finish() {
  const std::lock_guard lock(mutex_);
  if (attempt_ == nullptr) return;
  std::unique_lock waiting(attempt_->mutex_);
  attempt_->changed_.wait(waiting, [&] { return attempt_->done_; });
}

}  // namespace weft::rpc
