// CallOrder: orders one caller's calls on devices.
//
// Each call runs on streams of its own, and is answered while its kernels still run. If a function
// changes a tensor in place and returns none, its caller has nothing to wait for. So the streams of
// the caller's next call wait for those of its answered calls.
//
// Threads: any. Failure: c10::Error of the device.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <vector>

namespace weft::rpc {

class CallOrder {
 public:
  // A call that ran on these streams is about to be answered.
  void add(const std::vector<c10::Stream>& streams);
  // Makes the current streams wait for the calls that were added.
  void follow();
  // The caller is gone, so no call will follow.
  void clear();

 private:
  std::mutex mutex_;
  std::vector<c10::Event> unfinished_;
};

}  // namespace weft::rpc
