#include "c10d_plugin/cuda/device/device_queue.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace weft::process_group {

class DeviceQueue::Task final : public collectives::OpQueue::Task {
 public:
  Task(DeviceWork::What what, c10::intrusive_ptr<DeviceWork> work, Run run,
       const c10::cuda::CUDAStream& stream, std::shared_ptr<Meeting> meeting)
      : what_(std::move(what)),
        work_(std::move(work)),
        run_(std::move(run)),
        stream_(stream),
        meeting_(std::move(meeting)) {
    ready_.record(c10::cuda::getCurrentCUDAStream(stream.device_index()));
  }

  void run() noexcept override {
    std::exception_ptr error;
    try {
      meeting_->state()->check(what_.title);
      const c10::cuda::CUDAStreamGuard guard(stream_);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      waitForCaller();
      run_(stream_);
    } catch (...) {
      error = std::current_exception();
    }
    has_callbacks_ = work_->settle(std::move(error), stream_);
  }
  bool finishMayBlock() noexcept override { return has_callbacks_; }
  void finish() noexcept override {
    run_ = nullptr;  // it may hold the last references to tensors, whose release needs the GIL
    what_ = {};
    work_->complete();
  }

 private:
  void waitForCaller() {
    try {
      ready_.block(stream_);
    } catch (...) {
      meeting_->breakOff(what_.title);
      throw;
    }
  }

  DeviceWork::What what_;
  c10::intrusive_ptr<DeviceWork> work_;
  Run run_;
  const c10::cuda::CUDAStream stream_;
  const std::shared_ptr<Meeting> meeting_;
  at::cuda::CUDAEvent ready_;
  bool has_callbacks_ = false;
};

c10::intrusive_ptr<DeviceWork> DeviceQueue::run(const DeviceWork::What& what, Run run) {
  meeting_->state()->check(what.title);
  const c10::cuda::CUDAGuard guard(stream_.device_index());
  for (const at::Tensor& tensor : what.memory)
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream_);
  auto work = c10::make_intrusive<DeviceWork>(meeting_->rank(), what, stream_.device_index(),
                                              meeting_->state());
  const bool taken =
      queue_.push(std::make_unique<Task>(what, work, std::move(run), stream_, meeting_));
  if (!taken) {
    C10_THROW_ERROR(DistBackendError,
                    std::string(what.title) + ": the process group was shut down");
  }
  return work;
}

}  // namespace weft::process_group
