// WeftBackend: torch's process-group backend "weft". Operations on CPU tensors go through
// Collectives and the Mailbox; those on tensors of another device go to another backend of the same
// ranks, for CUDA to NCCL (delegates.h).
//
// Threads: any thread may call any member; operations run in the order of the calls (engine.h). A
// synchronous call (asyncOp false) runs on the calling thread and returns no Work. In a forked
// child every operation throws, and abort() and shutdown() do nothing.
// Failure: bad arguments throw and change nothing. A failure between the ranks is a
// c10::DistBackendError that names the rank, and every later operation fails with it.
//
// Shapes and semantics are those of torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, which this
// replaces. AVG, complex numbers, uneven sizes and list all_to_all, which that refuses, work here.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "c10d_plugin/backend/child_groups.h"
#include "c10d_plugin/backend/communicator.h"
#include "c10d_plugin/backend/delegates.h"
#include "c10d_plugin/engine/running_op.h"
#include "c10d_plugin/p2p/waiting_messages.h"
#include "transport/base/api.h"

namespace weft::process_group {

inline constexpr const char* kBackendName = "weft";

class WEFT_API WeftBackend : public c10d::Backend {
 public:
  struct WEFT_API Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout)
        : c10d::Backend::Options(kBackendName, limit) {}
    std::string interface;       // "": WEFT_SOCKET_IFNAME, else the one that reaches the others
    MakeDelegate make_delegate;  // for tensors on other devices; split-off groups inherit it
  };

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  // Meets the other ranks through the Store, within options->timeout, and logs which are missing
  // while it waits. Throws c10::DistBackendError.
  WeftBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              c10::intrusive_ptr<Options> options);
  // Does not wait: running operations go on until their own end.
  ~WeftBackend() override;

  const std::string getBackendName() const override { return kBackendName; }
  // A copy: torch changes it for the group that it splits off.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  bool supportsSplitting() const override { return true; }
  // False, because torch keeps a batch's operations per group: a batch of one thread would take the
  // collectives of other threads, too, and those of all threads once it has raised. CPU tensors
  // gain nothing from a batch; weft/_torch/patches/batches.py batches those of a delegate.
  bool supportsCoalescing() const override { return false; }
  bool supportsShrinking() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setGroupUid(const std::string& uid) override;
  c10d::ErrorType getError() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
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
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Memory for tensors that the group's collectives need not copy: it is shared between the ranks
  // of one host (shm/segment/heap.h), or ordinary memory if the heap is full. FSDP2 takes its
  // buffers from here.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // Makes the backend for that device now and connects it.
  void eagerConnectSingleDevice(at::Device device) override;

  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;

  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // abort() fails the running operation and all later ones, here and on the ranks that wait for
  // this one. shutdown() waits for running operations (10 s at most), then ends the group here; it
  // may be called again.
  void abort() override;
  void shutdown() override;

  // Called in place of the destructor while weak references remain, as the parent's ChildGroups
  // has.
  void release_resources() override;

  // The backend for tensors on such a device; null if none was needed so far.
  c10::intrusive_ptr<c10d::Backend> delegate(c10::DeviceType device) const;
  // As Communicator's.
  const std::string& path() const { return comm_->path(); }
  Activity activity() const;
  // The messages of CPU tensors for which threads of this process wait.
  std::vector<WaitingMessage> waitingMessages() const;

 private:
  // Gives the engine one operation (submit.h). The profiler shows `inputs` and `outputs`.
  template <typename OpOptions, typename Inputs, typename Outputs, typename Run>
  WorkPtr submit(c10d::OpType type, const char* title, const OpOptions& opts, const Inputs& inputs,
                 const Outputs& outputs, Run&& run);
  // The timeout that a call asked for, else the group's.
  std::chrono::milliseconds timeoutOr(std::chrono::milliseconds asked) const;
  // The backend for a device that is not the CPU, made now if there is none yet.
  const c10::intrusive_ptr<c10d::Backend>& delegateOn(c10::Device device);
  // The backend for a tensor on another device; null for a tensor on the CPU.
  c10d::Backend* delegateFor(const at::Tensor& tensor);
  c10d::Backend* delegateFor(const Tensors& tensors);
  PointToPoint& messages(const char* title) const;
  // Sends or receives, as `type` says. `peer`: the other rank, or kAnyRank.
  WorkPtr startMessage(c10d::OpType type, const char* title, const at::Tensor& tensor, int peer,
                       int tag);
  c10::intrusive_ptr<c10d::Backend> child(const ChildGroups::Ranks& ranks,
                                          const ChildGroups::OptionsPtr& opts) const;

  // None of these after release_resources().
  c10::intrusive_ptr<Options> options_;
  std::optional<ChildGroups> children_;
  std::optional<Communicator> comm_;
  std::atomic<std::int64_t> timeout_ms_;
};

}  // namespace weft::process_group
