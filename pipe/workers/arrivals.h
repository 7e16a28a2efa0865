// Arrivals: what other workers have sent here for the mini-batches of one pipeline. A thread that
// runs a mini-batch waits for it.
//
// Threads: any. RPC's threads put parcels in; the thread that runs a mini-batch takes them out,
// without the GIL.
// Failure: a wait throws std::runtime_error when the mini-batch is over, because a stage failed, a
// worker was lost, or the driver gave up. Parcels for a mini-batch that is over are dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/base/api.h"
#include "transport/base/deadline.h"
#include "transport/base/interruption.h"

namespace weft::pipe {

enum class Sent : std::uint8_t { kInput, kGradients, kSkip, kSkipGradient, kSums };

// What a parcel is for. Stages and micro-batches count from 0. A value on a skip connection has the
// connection's number as `stage`. The sums of gradients that replicas send each other have the
// first of their stages, and the replica's number as `micro_batch`.
struct ArrivalKey {
  std::int64_t mini_batch = 0;
  Sent what = Sent::kInput;
  std::int64_t stage = 0;
  std::int64_t micro_batch = 0;
  auto operator<=>(const ArrivalKey&) const = default;
};

// A value, taken apart into its tensors; `layout` says how to put it together (script_values.h).
struct Parcel {
  std::string layout;
  std::vector<at::Tensor> tensors;
};

class WEFT_API Arrivals {
 public:
  // Keeps `parcel` until it is taken.
  void put(const ArrivalKey& key, Parcel parcel);
  // Nothing if it did not come in time. On the main thread Ctrl-C ends the wait, which then throws
  // what the handler raised.
  std::optional<Parcel> take(const ArrivalKey& key, std::chrono::milliseconds patience);
  // This mini-batch and those before it are over: drops what came for them. Threads that wait for
  // one get the first reason.
  void end(std::int64_t mini_batch, const std::string& reason);
  bool isOver(std::int64_t mini_batch) const;
  // How many parcels wait.
  std::size_t size() const;

 private:
  void wakeTakers();
  // Nothing: this thread cannot read the network.
  std::optional<transport::Waited> awaitReading(transport::Deadline deadline,
                                                const std::function<bool()>& ready);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The thread that reads the network while it waits in take(); the default id: no thread.
  std::atomic<std::thread::id> reading_thread_{};
  std::map<ArrivalKey, Parcel> parcels_;  // of mini-batches that are not over
  std::int64_t ended_ = -1;               // the last mini-batch that is over
  std::string reason_;
};

// The Arrivals of the pipelines that have stages at this worker, by the pipelines' names.
WEFT_API std::shared_ptr<Arrivals> openArrivals(const std::string& pipeline);
// Ends them. Another part of that pipeline may have opened its own meanwhile, which stay.
WEFT_API void closeArrivals(const std::string& pipeline, const std::shared_ptr<Arrivals>& own);
WEFT_API std::shared_ptr<Arrivals> findArrivals(const std::string& pipeline);  // null: none
// What a worker without Arrivals says to who asks for its stage.
WEFT_API std::string noStageAt(const std::string& worker);

}  // namespace weft::pipe
