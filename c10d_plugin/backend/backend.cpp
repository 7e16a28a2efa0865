// What of WeftBackend is no collective: messages, memory, other groups, timeouts and the end.
#include "c10d_plugin/backend/backend.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/p2p/point_to_point.h"
#include "c10d_plugin/tensors/op_checks.h"

namespace weft::process_group {

using c10d::OpType;
using std::chrono::milliseconds;

WeftBackend::WeftBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      children_(std::in_place,
                ChildGroups::Ranks{store, rank, size, options_->global_ranks_in_group},
                [this](const ChildGroups::Ranks& ranks, const ChildGroups::OptionsPtr& opts) {
                  return child(ranks, opts);
                }),
      comm_(std::in_place,
            DelegateSpec{c10::Device(c10::DeviceType::CPU), std::move(store), rank, size,
                         options_->timeout, options_->group_name, options_->global_ranks_in_group},
            options_->interface, options_->make_delegate),
      timeout_ms_(options_->timeout.count()) {
  init();
}

WeftBackend::~WeftBackend() = default;

void WeftBackend::release_resources() {
  comm_.reset();
  children_.reset();
  options_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(*options_);
  options->timeout = timeoutOr(milliseconds(0));
  return options;
}

void WeftBackend::setTimeout(milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "weft: the timeout must be positive, got ", timeout.count(),
              " ms");
  timeout_ms_.store(timeout.count());
  comm_->delegates().setTimeout(timeout);
}

void WeftBackend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  comm_->delegates().setGroupUid(uid);
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::delegate(c10::DeviceType device) const {
  return comm_->delegates().made(device);
}

milliseconds WeftBackend::timeoutOr(milliseconds asked) const {
  return asked.count() > 0 ? asked : milliseconds(timeout_ms_.load(std::memory_order_relaxed));
}

Activity WeftBackend::activity() const { return comm_->engine().activity(); }

std::vector<WaitingMessage> WeftBackend::waitingMessages() const {
  if (!comm_->engine().inOwnProcess()) return {};  // a forked child has no share in locks
  return comm_->messages().waiting();
}

c10d::ErrorType WeftBackend::getError() {
  return comm_->engine().failed() || comm_->delegates().failed() ? c10d::ErrorType::COMM_ERROR
                                                                 : c10d::ErrorType::SUCCESS;
}

PointToPoint& WeftBackend::messages(const char* title) const {
  comm_->engine().checkProcess(title);
  return comm_->messages();
}

// torch tells a backend its group's description without the backend's knowledge.
const c10::intrusive_ptr<c10d::Backend>& WeftBackend::delegateOn(c10::Device device) {
  const auto& delegate = comm_->delegates().of(device);
  if (delegate->getGroupDesc() != getGroupDesc()) delegate->setGroupDesc(getGroupDesc());
  return delegate;
}

c10d::Backend* WeftBackend::delegateFor(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return nullptr;
  const auto& delegate = delegateOn(tensor.device());
  comm_->engine().batches().join(delegate);
  return delegate.get();
}

c10d::Backend* WeftBackend::delegateFor(const Tensors& tensors) {
  return tensors.empty() ? nullptr : delegateFor(tensors.front());
}

WeftBackend::WorkPtr WeftBackend::startMessage(OpType type, const char* title,
                                               const at::Tensor& tensor, int peer, int tag) {
  auto& messages = this->messages(title);
  const OpParams params{title, timeoutOr(milliseconds(0)), true, this};
  TrackedOp recorded = comm_->engine().recorder().recordMessage(params, type, tensor, peer, tag);
  auto work = type == OpType::SEND
                  ? messages.send(tensor, peer, tag, params.timeout, std::move(recorded))
                  : messages.receive(tensor, peer, tag, params.timeout, std::move(recorded));
  comm_->engine().batches().add(work);
  return work;
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int to, int tag) {
  if (auto* other = delegateFor(tensors)) return other->send(tensors, to, tag);
  const at::Tensor& tensor = only(tensors, "weft:send");
  checkRank(to, size_, "other", "weft:send");
  return startMessage(OpType::SEND, "weft:send", tensor, to, tag);
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int from, int tag) {
  if (auto* other = delegateFor(tensors)) return other->recv(tensors, from, tag);
  const at::Tensor& tensor = only(tensors, "weft:recv");
  checkRank(from, size_, "other", "weft:recv");
  return startMessage(OpType::RECV, "weft:recv", tensor, from, tag);
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  if (auto* other = delegateFor(tensors)) return other->recvAnysource(tensors, tag);
  const at::Tensor& tensor = only(tensors, "weft:recvAnySource");
  return startMessage(OpType::RECVANYSOURCE, "weft:recvAnySource", tensor, collectives::kAnyRank,
                      tag);
}

void WeftBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // Here 0 means no time at all: programs use it to see who is late.
  const auto timeout = opts.timeout.count() == 0 ? opts.timeout : timeoutOr(opts.timeout);
  messages("weft:monitored_barrier").monitoredBarrier(timeout, wait_all_ranks);
}

void WeftBackend::startCoalescing() {
  comm_->engine().checkProcess("weft:coalescing");
  comm_->engine().batches().start();
}

WeftBackend::WorkPtr WeftBackend::endCoalescing() { return comm_->engine().batches().end(); }

void WeftBackend::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cpu()) return;
  c10d::Backend& backend = *delegateOn(device);
  backend.setBoundDeviceId(device);
  backend.eagerConnectSingleDevice(device);
}

// torch passes only the device's number: -1 is the CPU.
bool WeftBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  if (device < 0) return comm_->engine().allocates();
  const auto cuda = comm_->delegates().made(c10::DeviceType::CUDA);
  return cuda && cuda->supportsTensorAlloc(device);
}

at::Tensor WeftBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(size >= 0, "weft: a tensor of ", size, " elements cannot be allocated");
  if (!options.device().is_cpu()) {
    return comm_->delegates().of(options.device())->allocateTensor(size, options);
  }
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  transport::OwnedBuffer memory = comm_->engine().allocate(bytes);
  if (memory.data == nullptr) return at::empty({size}, options);
  at::DataPtr data = c10::InefficientStdFunctionContext::makeDataPtr(
      memory.data, [owner = std::move(memory.owner)](void*) {}, options.device());
  // With an allocator it can be resized, as others can: it moves to ordinary memory then.
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                       c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  return at::empty({0}, options).set_(std::move(storage), 0, {size}, {1});
}

void WeftBackend::setSequenceNumberForGroup() { comm_->delegates().setSequenceNumbers(); }

uint64_t WeftBackend::getSequenceNumberForGroup() {
  return comm_->engine().recorder().calls() + comm_->delegates().sequenceNumbers();
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::child(const ChildGroups::Ranks& ranks,
                                                     const ChildGroups::OptionsPtr& opts) const {
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : timeoutOr(milliseconds(0)));
  options->interface = options_->interface;
  options->make_delegate = options_->make_delegate;
  if (opts) options->group_name = opts->group_name;
  options->global_ranks_in_group = ranks.global;
  return c10::make_intrusive<WeftBackend>(ranks.store, ranks.rank, ranks.size, std::move(options));
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  return children_->split(store, ranks, opts);
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  return children_->merge(store, opts, rank, size);
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::shrink(
    const std::vector<int64_t>& excluded, int /*flags*/,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  return children_->shrink(excluded, opts);
}

void WeftBackend::abort() { comm_->abort(); }

void WeftBackend::shutdown() { comm_->shutdown(); }

}  // namespace weft::process_group
