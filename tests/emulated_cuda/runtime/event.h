// An event: a record's place in a stream. Who waits waits for the last record before, whatever is
// recorded later and wherever. The counts of an interprocess event lie in memory that other
// processes map; a record of it must be over before the next. Any thread may call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

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
  std::shared_ptr<Counts> counts();
  void hostKnows();

  int descriptor_ = -1;
  std::mutex mutex_;                // guards these two
  std::shared_ptr<Counts> counts_;  // of an event of one process: of its last record
  Clock clock_;
  std::atomic<std::chrono::steady_clock::rep> time_{0};
};

}  // namespace emulated
