// How the ranks of a SharedDeviceBackend connect and leave, and how an operation is run.
#include "c10d_plugin/cuda/shared_device_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <string>

#include "c10d_plugin/backend/shared_devices.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "transport/base/deadline.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kLinger{10'000};   // for operations that run when the group is shut down
constexpr milliseconds kFarewell{5'000};  // for the other ranks to shut down, too

c10::Device withIndex(c10::Device device) {
  if (device.has_index()) return device;
  return {c10::kCUDA, c10::cuda::current_device()};
}

// All ranks know of each other's failure to open the others' memory.
std::shared_ptr<Staging> makeStaging(c10::DeviceIndex device, std::size_t bytes, Meeting& meeting,
                                     const Step& step) {
  std::shared_ptr<Staging> made;
  std::exception_ptr problem;
  try {
    made = std::make_shared<Staging>(device, bytes, meeting, step);
  } catch (const c10::Error&) {
    problem = std::current_exception();
  }
  const auto all = meeting.gather({problem ? 1 : 0}, step);
  if (problem) std::rethrow_exception(problem);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == 0) continue;
    C10_THROW_ERROR(DistBackendError, std::string(step.title) + ": rank " + std::to_string(rank) +
                                          " could not do its part; its own error says why");
  }
  return made;
}

}  // namespace

SharedDeviceBackend::SharedDeviceBackend(const DelegateSpec& spec,
                                         c10::intrusive_ptr<c10d::Backend> meeting)
    : c10d::Backend(spec.rank, spec.size),
      device_(withIndex(spec.device)),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index())),
      timeout_ms_(spec.timeout.count()),
      meeting_(std::make_shared<Meeting>(std::move(meeting))) {
  constexpr std::size_t kLeast = 1024;  // bytes of a rank's share of a half
  const std::size_t half = spec.staging_bytes / 2 / 256 * 256;
  TORCH_CHECK(half >= kLeast * ranks(), "weft: staging_bytes must be at least ",
              2 * kLeast * ranks(), " for ", size_, " ranks, got ", spec.staging_bytes);
  const Step step{"weft: connecting ranks that share a CUDA device",
                  transport::deadlineAfter(spec.timeout)};
  staging_ = makeStaging(device_.index(), half, *meeting_, step);
  rounds_ = std::make_shared<Rounds>(*meeting_, *staging_);
  queue_ = std::make_shared<DeviceQueue>(stream_, meeting_);
  messages_ = std::make_unique<DeviceMessages>(device_.index(), meeting_);
  meeting_->watch();
  init();
}

SharedDeviceBackend::~SharedDeviceBackend() {
  if (shut_down_) return;
  meeting_->state()->close();
  queue_->close();
  static_cast<void>(new auto(staging_));
}

c10d::ErrorType SharedDeviceBackend::getError() {
  return meeting_->state()->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::noted(WorkPtr work) {
  batches_.add(work);
  return work;
}

void SharedDeviceBackend::check(const Tensors& tensors, const char* title) const {
  TORCH_CHECK(!tensors.empty(), title, ": needs at least one tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.defined(), title, ": a tensor is undefined");
    TORCH_CHECK(tensor.device() == device_, title, ": this rank's part of the group is on ",
                device_, "; a tensor is on ", tensor.device());
    TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(), title,
                ": tensors of ranks that share a device must be dense and not quantised");
    TORCH_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), title,
                ": all tensors must have one type, got ", tensor.scalar_type(), " and ",
                tensors.front().scalar_type());
  }
}

DeviceOp SharedDeviceBackend::opOn(c10d::OpType type, const char* title,
                                   const at::Tensor& tensor) const {
  DeviceOp op;
  op.type = type;
  op.title = title;
  op.element = tensor.scalar_type();
  op.gives.assign(ranks(), 0);
  op.wants.assign(ranks(), kAnySize);
  return op;
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::submit(DeviceOp op, milliseconds timeout,
                                                         FlatCall call) {
  calls_.fetch_add(1);
  const milliseconds limit = timeout.count() > 0 ? timeout : milliseconds(timeout_ms_.load());
  const auto what = call.what(op.type);
  auto run = [rounds = rounds_, staging = staging_, meeting = meeting_, op = std::move(op), limit,
              call = std::move(call)](const c10::cuda::CUDAStream& stream) {
    rounds->run(op, {op.title, transport::deadlineAfter(limit)}, stream);
    call.writeBack();
  };
  return noted(queue_->run(what, std::move(run)));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::send(Tensors& tensors, int to, int tag) {
  constexpr const char* kTitle = "weft:send";
  const at::Tensor& tensor = only(tensors, kTitle);
  TORCH_CHECK(to >= 0 && to < size_ && to != rank_, kTitle, ": rank ", rank_,
              " cannot send to rank ", to);
  check(tensors, kTitle);
  return noted(messages_->send(tensor, to, tag, milliseconds(timeout_ms_.load())));
}

SharedDeviceBackend::WorkPtr SharedDeviceBackend::recv(Tensors& tensors, int from, int tag) {
  constexpr const char* kTitle = "weft:recv";
  const at::Tensor& tensor = only(tensors, kTitle);
  TORCH_CHECK(from >= 0 && from < size_ && from != rank_, kTitle, ": rank ", rank_,
              " cannot receive from rank ", from);
  check(tensors, kTitle);
  return noted(messages_->receive(tensor, from, tag, milliseconds(timeout_ms_.load())));
}

void SharedDeviceBackend::abort() {
  meeting_->fail("the process group was aborted on rank " + std::to_string(rank_));
}

void SharedDeviceBackend::shutdown() {
  const std::lock_guard lock(shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  bool well = queue_->drain(kLinger) && messages_->close(kLinger) && !meeting_->state()->failed();
  meeting_->state()->close();
  queue_->close();
  if (well) {
    // Nobody reads this rank's memory any more once all are here with their own work done.
    try {
      const c10::cuda::CUDAGuard guard(device_.index());
      C10_CUDA_CHECK(cudaDeviceSynchronize());
      const Step step{"weft: shutdown", steady_clock::now() + kFarewell};
      static_cast<void>(meeting_->gather({0}, step));
    } catch (const c10::Error&) {
      well = false;  // they have died, or do not shut down
    }
  }
  if (!well) meeting_->abort();
  if (!queue_->waitForThreads(kLinger)) well = false;
  if (well) {
    messages_->release();
  } else {
    static_cast<void>(new auto(staging_));  // a stream may still use it
  }
  rounds_.reset();
  staging_.reset();
  meeting_->shutdown();
}

namespace {

class Support final : public SharedDevices {
 public:
  std::string address(c10::Device device) override {
    std::string address(32, '\0');
    C10_CUDA_CHECK(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()),
                                         withIndex(device).index()));
    address.resize(address.find('\0'));
    return address;
  }
  c10::intrusive_ptr<c10d::Backend> make(const DelegateSpec& spec,
                                         c10::intrusive_ptr<c10d::Backend> meeting) override {
    return c10::make_intrusive<SharedDeviceBackend>(spec, std::move(meeting));
  }
};

struct Registration {
  Registration() { registerSharedDevices(new Support); }
};
[[maybe_unused]] const Registration registration;

}  // namespace

}  // namespace weft::process_group
