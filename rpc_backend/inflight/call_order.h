// CallOrder: what one caller's finished calls have left to do on devices.
//
// Calls run on streams of their own, and a call is answered while its kernels run. A function that
// changes a tensor in place, and returns none, gives its caller nothing to wait for: so the
// caller's next call waits, on its streams.
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
  // A call, which ran on these streams, is about to be answered.
  void add(const std::vector<c10::Stream>& streams);
  // Makes the current streams wait for the calls that were added.
  void follow();
  // The caller is gone; nobody follows its calls.
  void clear();

 private:
  std::mutex mutex_;
  std::vector<c10::Event> unfinished_;
};

}  // namespace weft::rpc
