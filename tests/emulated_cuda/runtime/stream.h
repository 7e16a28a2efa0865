// A stream: pieces of work that run in order on a thread of its own, each held back by a random
// time, so that who forgets to wait for one reads what was there before. Any thread may call.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <span>

#include "tests/emulated_cuda/runtime/access_check.h"

namespace emulated {

class Stream {
 public:
  Stream(int device, int priority);
  ~Stream();  // runs what is queued

  int device() const { return device_; }
  int priority() const { return priority_; }
  unsigned number() const { return number_; }

  // Queues work and checks what it reads and writes.
  void launch(std::span<const Access> accesses, std::function<void()> work);
  // Queues work that touches no device memory, without a delay.
  void enqueue(std::function<void()> work);

  // Begins another sequence of delays.
  void seed(std::uint64_t seed);

  // Until all that was queued has run; the host then knows it.
  void wait();
  // The same for who only needs the values: no order comes of it.
  void drain();
  // Whether all has run; if so, the host knows it.
  bool isIdle();

 private:
  struct Piece {
    std::function<void()> work;
    bool late;
  };

  void add(Piece piece);
  void run();
  std::chrono::microseconds drawDelay();

  const int device_;
  const int priority_;
  const unsigned number_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::condition_variable changed_;
  std::deque<Piece> queue_;
  bool running_ = false;  // a piece is being run
  bool started_ = false;
  bool ending_ = false;
};

// The stream of a handle; zero and the two special handles mean the current device's default
// stream. Null where the handle names none.
Stream* streamOf(cudaStream_t handle);

Stream& defaultStream(int device);

// Begins other delays on all streams, of now and later.
void seedDelays(std::uint64_t seed);

// Waits for every stream of a device.
void waitForDevice(int device);

}  // namespace emulated
