// SharedDeviceBackend: collectives of ranks of one host of which some share a CUDA device, which
// NCCL refuses. Data go through buffers of device memory that all ranks have mapped (staging.h),
// ordered by events between the processes' streams; only what the ranks have asked for is compared
// on the host.
//
// Threads: any thread may call any member; operations run in the order of the calls, on a thread
// and a stream of the group, after what the caller's current stream holds at the call. Messages
// run beside them (device_messages.h).
// Ownership: the tensors of an operation are kept, and their memory is not given away, until the
// device has done it.
// Failure: bad arguments throw and change nothing. A rank that dies or stays away ends the group:
// operations that wait, and all later ones, throw c10::DistBackendError that names it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c10d_plugin/backend/delegates.h"
#include "c10d_plugin/cuda/device/device_queue.h"
#include "c10d_plugin/cuda/device/flat_call.h"
#include "c10d_plugin/cuda/device_messages.h"
#include "c10d_plugin/cuda/rounds.h"
#include "c10d_plugin/engine/coalescing_batches.h"

namespace weft::process_group {

class SharedDeviceBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  // Called by all ranks; connects them within spec.timeout. Owns `meeting`.
  SharedDeviceBackend(const DelegateSpec& spec, c10::intrusive_ptr<c10d::Backend> meeting);
  // Does not wait. Without a shutdown() the memory that other ranks may still read is leaked.
  ~SharedDeviceBackend() override;

  const std::string getBackendName() const override { return "weft-shared-device"; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }
  c10d::ErrorType getError() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_.load(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

  void startCoalescing() override { batches_.start(); }
  WorkPtr endCoalescing() override { return batches_.end(); }

  void abort() override;
  // Waits for what was called, and a little for the other ranks, which may still read this one's
  // memory.
  void shutdown() override;

 private:
  // Runs `op` on the tensors that `call` has flattened, and writes its outputs back.
  WorkPtr submit(DeviceOp op, std::chrono::milliseconds timeout, FlatCall call);
  WorkPtr noted(WorkPtr work);
  // Moves in[r], or the only one, to rank r; out[r] comes from rank r, if it is defined.
  WorkPtr exchange(DeviceOp op, std::chrono::milliseconds timeout, FlatCall call, Tensors in,
                   Tensors out);
  // out is the reduction of what all ranks have in in[rank].
  WorkPtr reduceShares(DeviceOp op, const c10d::ReduceOp& how, std::chrono::milliseconds timeout,
                       FlatCall call, Tensors in, const at::Tensor& out);
  // In place, at the root or on all ranks.
  WorkPtr reduceWhole(DeviceOp op, const c10d::ReduceOp& how, std::chrono::milliseconds timeout,
                      const at::Tensor& tensor);
  DeviceOp opOn(c10d::OpType type, const char* title, const at::Tensor& tensor) const;
  // Dense, on the group's device, and of one type.
  void check(const Tensors& tensors, const char* title) const;
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }

  const c10::Device device_;
  const c10::cuda::CUDAStream stream_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> calls_{0};
  // Shared with running operations, which may outlive this.
  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<Rounds> rounds_;
  std::shared_ptr<DeviceQueue> queue_;
  std::unique_ptr<DeviceMessages> messages_;
  CoalescingBatches batches_;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

}  // namespace weft::process_group
