// DeviceQueue: runs operations in order on a stream of their own, from a thread of their own, and
// settles their Work.
//
// An operation begins after what the caller's current stream holds at run(). Its tensors are kept
// until it is queued, and torch's allocator is told of the stream, so that their memory is not
// given away before the device is done.
//
// Threads: any thread may call any member. Failure: an operation that cannot begin ends the group.
#pragma once

#include <functional>
#include <memory>

#include "c10d_plugin/cuda/device/device_work.h"
#include "c10d_plugin/cuda/device/meeting.h"
#include "c10d_plugin/engine/op_queue.h"

namespace weft::process_group {

class DeviceQueue {
 public:
  using Run = std::function<void(const c10::cuda::CUDAStream&)>;

  DeviceQueue(const c10::cuda::CUDAStream& stream, std::shared_ptr<Meeting> meeting)
      : stream_(stream), meeting_(std::move(meeting)) {}

  // `run` queues the work on the stream, which is the current one, or throws. Throws what ended
  // the group.
  c10::intrusive_ptr<DeviceWork> run(const DeviceWork::What& what, Run run);

  // As OpQueue's.
  bool drain(std::chrono::milliseconds limit) { return queue_.drain(limit); }
  void close() { queue_.close(); }
  bool waitForThreads(std::chrono::milliseconds limit) { return queue_.waitForThreads(limit); }

 private:
  class Task;

  const c10::cuda::CUDAStream stream_;
  const std::shared_ptr<Meeting> meeting_;
  collectives::OpQueue queue_;
};

}  // namespace weft::process_group
