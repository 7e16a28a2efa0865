// An event: a record's place in a stream. Its counts may lie in memory that another process has
// mapped. Any thread may call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "tests/emulated_cuda/runtime/access_check.h"
#include "tests/emulated_cuda/runtime/stream.h"

namespace emulated {

class Event {
 public:
  struct Counts {
    std::atomic<std::uint64_t> asked{0};  // records asked for
    std::atomic<std::uint64_t> done{0};   // the last that its stream has come to
  };
  struct Handle {  // what travels in a cudaIpcEventHandle_t
    std::uint64_t magic;
    std::int32_t process;
    std::int32_t descriptor;
  };

  explicit Event(bool interprocess);
  ~Event();
  // Null where the other process or its event is gone.
  static Event* open(const Handle& handle);

  void record(Stream& stream);
  void makeWait(Stream& stream);
  void wait();
  bool isDone();
  bool isInterprocess() const { return descriptor_ >= 0; }
  Handle handle() const;
  float millisecondsSince(const Event& earlier) const;

 private:
  explicit Event(int descriptor);
  void hostKnows();

  int descriptor_ = -1;
  Counts* counts_;
  std::mutex mutex_;  // guards clock_
  Clock clock_;
  std::atomic<std::chrono::steady_clock::rep> time_{0};
};

}  // namespace emulated
