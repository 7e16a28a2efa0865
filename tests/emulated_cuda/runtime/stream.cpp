#include "tests/emulated_cuda/runtime/stream.h"

#include <pthread.h>

#include <chrono>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/runtime/device.h"
#include "tests/emulated_cuda/runtime/settings.h"

namespace emulated {
namespace {

struct Streams {
  std::mutex mutex;
  std::set<Stream*> all;
  std::uint64_t seed = settings().seed;
};

Streams& streams() {
  static auto& streams = *new Streams;  // outlives the threads
  return streams;
}

}  // namespace

Stream::Stream(int device, int priority)
    : device_(device), priority_(priority), number_(addStream()) {
  const std::lock_guard lock(streams().mutex);
  seed(streams().seed);
  streams().all.insert(this);
}

Stream::~Stream() {
  {
    const std::lock_guard lock(streams().mutex);
    streams().all.erase(this);
  }
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !started_; });
}

void Stream::seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  random_.seed(seed * 1000003 + number_);
}

void Stream::launch(std::span<const Access> accesses, std::function<void()> work) {
  checkLaunch(number_, accesses);
  add({std::move(work), true});
}

void Stream::enqueue(std::function<void()> work) { add({std::move(work), false}); }

void Stream::add(Piece piece) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(piece));
  if (!started_) {  // most of torch's pool of streams is never used
    started_ = true;
    std::thread([this] { run(); }).detach();
  }
  changed_.notify_all();
}

void Stream::wait() {
  const auto clock = clockOf(number_);
  drain();
  hostWaits(clock);
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !running_; });
}

bool Stream::isIdle() {
  const auto clock = clockOf(number_);
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() || running_) return false;
  }
  hostWaits(clock);
  return true;
}

void Stream::run() {
  ::pthread_setname_np(::pthread_self(), "cuda-stream");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    auto piece = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    const auto delay = piece.late ? drawDelay() : std::chrono::microseconds(0);
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    piece.work();
    piece.work = nullptr;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
  started_ = false;
  changed_.notify_all();
}

// Half of the pieces run at once, so that both orders of two streams occur.
std::chrono::microseconds Stream::drawDelay() {
  const auto most = settings().max_delay_us;
  if (most == 0 || random_() % 2 == 0) return std::chrono::microseconds(0);
  return std::chrono::microseconds(random_() % most);
}

void seedDelays(std::uint64_t seed) {
  const std::lock_guard lock(streams().mutex);
  streams().seed = seed;
  for (auto* stream : streams().all)
    stream->seed(seed);
}

Stream* streamOf(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return &defaultStream(currentDevice());
  auto* stream = reinterpret_cast<Stream*>(handle);
  const std::lock_guard lock(streams().mutex);
  return streams().all.contains(stream) ? stream : nullptr;
}

Stream& defaultStream(int device) {
  static auto& defaults = []() -> std::vector<Stream*>& {
    auto& made = *new std::vector<Stream*>;
    for (std::size_t at = 0; at < settings().devices.size(); ++at)
      made.push_back(new Stream(static_cast<int>(at), 0));
    return made;
  }();
  return *defaults.at(static_cast<std::size_t>(device));
}

void waitForDevice(int device) {
  std::vector<Stream*> found;
  {
    const std::lock_guard lock(streams().mutex);
    for (auto* stream : streams().all)
      if (stream->device() == device) found.push_back(stream);
  }
  for (auto* stream : found)
    stream->wait();
}

}  // namespace emulated
