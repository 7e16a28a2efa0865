// DeviceWork: the handle of one operation on a device, as torch's Work.
//
// wait() blocks the host until the operation's work has been queued, which needs the other ranks to
// have come, and then makes the current stream wait for that work; it does not wait for the device
// itself, except for a barrier.
//
// Threads: wait(), getFuture() and the queries from any thread; settle() and complete() once, by
// the thread that ran the operation. Callbacks run in complete(), with no lock held.
// Failure: wait() throws the operation's error; or what ended the group, where that was found
// before the device had done the work.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "c10d_plugin/cuda/device/group_state.h"

namespace weft::process_group {

class DeviceWork final : public c10d::Work {
 public:
  struct What {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;  // static text such as "weft:all_reduce"
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> memory;  // all that the device reads and writes
  };

  DeviceWork(int rank, const What& what, c10::DeviceIndex device,
             std::shared_ptr<const GroupState> state);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void abort() override;

  // The outcome: an error, also one that CUDA tells only now, or all that is queued on `stream`
  // now. True: complete() will run callbacks. Neither throws.
  bool settle(std::exception_ptr error, const c10::cuda::CUDAStream& stream);
  void complete();

 private:
  void waitUntilSettled(std::chrono::milliseconds timeout);
  void waitForDevice() const;
  void fill(const c10::intrusive_ptr<c10::ivalue::Future>& future);

  const char* const title_;
  const c10::DeviceIndex device_;
  const std::shared_ptr<const GroupState> state_;
  std::vector<at::Tensor> outputs_;
  at::cuda::CUDAEvent end_;  // written before settled_
  // Under mutex_ of the base. The first getFuture() makes the future.
  bool settled_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool filled_ = false;
};

}  // namespace weft::process_group
