// Deliveries: what this worker sends to others in one mini-batch, and the wait until it is there.
//
// A delivery is torch's scripted call to the name kDeliver, a quick call (quick_call.h), which puts
// it among the other worker's Arrivals in C++: no Python runs there, and nothing is unpickled as
// Python. Its values, in order:
// the pipeline's name, the key (mini-batch, what, stage, micro-batch), the layout, the tensors.
// Gradients stop at the sender: no distributed autograd context learns of a delivery.
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

// Until the worker has answered: it is there. Throws std::runtime_error when it is lost; on the
// main thread also what a handler of Ctrl-C raised.
WEFT_API void awaitAnswer(const std::string& worker);

class WEFT_API Deliveries {
 public:
  explicit Deliveries(std::string pipeline) : pipeline_(std::move(pipeline)) {}

  // Begins to send. Throws when the call cannot be sent.
  void send(const std::string& worker, const ArrivalKey& key, Parcel parcel);
  // Waits until all that was sent has arrived. Throws std::runtime_error for the first that did
  // not, with its worker; on the main thread also what a handler of Ctrl-C raised.
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
