// Deliveries: sends what this worker has for others in one mini-batch, and waits until it has
// arrived.
//
// A delivery is a scripted call of torch's to the name kDeliver. It is a quick call (quick_call.h)
// that puts the parcel among the other worker's Arrivals in C++, so no Python runs there. Its
// values, in order: the pipeline's name, the key (mini-batch, what, stage, micro-batch), the
// layout, the tensors. Distributed autograd records no delivery: gradients stop at the sender.
//
// Threads: one at a time, without the GIL.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <string>
#include <utility>
#include <vector>

#include "pipe/workers/arrivals.h"
#include "transport/base/api.h"

namespace weft::pipe {

inline constexpr const char* kDeliver = "__weft__.quick.deliver";
inline constexpr const char* kAlive = "__weft__.quick.alive";

// Waits until the worker has answered, so that it is known to live. Throws std::runtime_error if it
// is lost; on the main thread also what a handler of Ctrl-C raised.
WEFT_API void ping(const std::string& worker);

class WEFT_API Deliveries {
 public:
  explicit Deliveries(std::string pipeline) : pipeline_(std::move(pipeline)) {}

  // Begins to send. Throws when the call cannot be sent.
  void send(const std::string& worker, const ArrivalKey& key, Parcel parcel);
  // Waits until all that was sent has arrived. Throws std::runtime_error for the first parcel that
  // did not, with its worker; on the main thread also what a handler of Ctrl-C raised.
  void wait();

 private:
  struct Sending {
    std::string worker;
    ArrivalKey key;
    c10::intrusive_ptr<c10::ivalue::Future> answer;
  };
  const std::string pipeline_;
  std::string self_;  // this worker
  std::vector<Sending> sent_;
};

}  // namespace weft::pipe
