// How WeftBackend forms, ends, and makes other groups; send and recv.
#include "c10d_plugin/backend/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <thread>

#include "c10d_plugin/backend/point_to_point.h"
#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/join/make_group.h"
#include "c10d_plugin/join/store_key_value.h"
#include "c10d_plugin/store/epoch.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "transport/base/log.h"
#include "transport/base/thrown.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using transport::Error;
using transport::ErrorCode;

namespace {

constexpr milliseconds kLinger{10'000};  // for operations that run when the group is shut down

// The host that serves the Store, where it is one that has a host.
std::string hostOf(const c10::intrusive_ptr<c10d::Store>& store) {
  c10::intrusive_ptr<c10d::Store> inner = store;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get()))
    inner = prefixed->getUnderlyingNonPrefixStore();
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(inner.get());
  return tcp == nullptr ? std::string() : tcp->getHost();
}

}  // namespace

WeftBackend::WeftBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_ms_(options_->timeout.count()),
      last_split_backend_(c10::intrusive_ptr<c10d::Backend>()),
      delegates_(std::make_shared<Delegates>(
          options_->make_delegate,
          DelegateSpec{c10::Device(c10::DeviceType::CPU), store_, rank, size, options_->timeout,
                       options_->group_name, options_->global_ranks_in_group})) {
  TORCH_CHECK(size > 0 && rank >= 0 && rank < size, "weft: rank ", rank, " of ", size,
              " is no place in a group");
  TORCH_CHECK(options_->timeout.count() > 0, "weft: the timeout must be positive, got ",
              options_->timeout.count(), " ms");
  GroupPlace place;
  place.rank = rank;
  place.size = size;
  place.interface = options_->interface;
  place.master_host = hostOf(store_);
  place.deadline = collectives::deadlineAfter(options_->timeout);
  StoreKeyValue meeting(c10::make_intrusive<c10d::PrefixStore>("weft/", store_));
  const auto epoch = collectives::agreeOnEpoch(meeting, rank, size, place.deadline);
  if (!epoch.ok()) raise("weft: init_process_group", epoch.error());
  auto key_value = std::make_unique<StoreKeyValue>(
      c10::make_intrusive<c10d::PrefixStore>("weft/" + epoch.value() + "/", store_));
  auto parts = makeGroup(place, *key_value);
  if (!parts.ok()) raise("weft: init_process_group", parts.error());
  path_ = parts.value().made.path;
  if (transport::logEnabled(transport::LogLevel::kDebug)) {
    transport::log(transport::LogLevel::kDebug,
                   "process group '" + options_->group_name + "': rank " + std::to_string(rank) +
                       " of " + std::to_string(size) + ", collectives by " + path_);
  }
  engine_ =
      std::make_shared<Engine>(std::move(parts.value().made.collectives), std::move(key_value));
  messages_ = std::make_shared<PointToPoint>(std::move(parts.value().mailbox));
  init();
}

WeftBackend::~WeftBackend() {
  if (!inOwnProcess()) {
    // The threads and sockets are the parent's: never freed here.
    static_cast<void>(new auto(std::move(engine_)));
    static_cast<void>(new auto(std::move(messages_)));
    static_cast<void>(new auto(std::move(delegates_)));
    return;
  }
  const std::lock_guard lock(shutdown_mutex_);
  if (shut_down_ && !delegates_->any()) return;
  // The mailbox's end waits for its thread, which may wait for the GIL, which the thread that drops
  // the last reference may hold; a delegate's end likewise. So they end on a thread of their own;
  // where none can be started they stay until the process ends.
  struct Parts {
    decltype(delegates_) delegates;  // the last to go
    decltype(engine_) engine;
    decltype(messages_) messages;
  };
  auto* const parts = new Parts{std::move(delegates_), std::move(engine_), std::move(messages_)};
  const auto thrown =
      transport::thrownBy([parts] { std::thread([parts] { delete parts; }).detach(); });
  if (!thrown) return;
  transport::log(transport::LogLevel::kWarning,
                 "a process group is left as it is, because no thread can be started to end it (" +
                     *thrown + ")");
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() {
  return c10::static_intrusive_pointer_cast<c10d::Backend::Options>(options_);
}

void WeftBackend::setTimeout(milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "weft: the timeout must be positive, got ", timeout.count(),
              " ms");
  timeout_ms_.store(timeout.count());
  options_->timeout = timeout;
  delegates_->setTimeout(timeout);
}

void WeftBackend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  delegates_->describe(uid, getGroupDesc());
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::delegate(c10::DeviceType device) const {
  return delegates_->made(device);
}

milliseconds WeftBackend::timeoutOr(milliseconds asked) const {
  return asked.count() > 0 ? asked : milliseconds(timeout_ms_.load(std::memory_order_relaxed));
}

Activity WeftBackend::activity() const { return engine_->activity(); }

std::vector<WaitingMessage> WeftBackend::waitingMessages() const {
  return messages_ ? messages_->waiting() : std::vector<WaitingMessage>();
}

c10d::ErrorType WeftBackend::getError() {
  return engine_->failed() || delegates_->failed() ? c10d::ErrorType::COMM_ERROR
                                                   : c10d::ErrorType::SUCCESS;
}

PointToPoint& WeftBackend::messages(const char* title) const {
  engine_->checkProcess(title);
  return *messages_;
}

c10d::Backend* WeftBackend::elsewhere(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return nullptr;
  return &delegates_->of(tensor.device(), engine_->batches().open());
}

c10d::Backend* WeftBackend::elsewhere(const Tensors& tensors) {
  return tensors.empty() ? nullptr : elsewhere(tensors.front());
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int to, int tag) {
  if (auto* other = elsewhere(tensors)) return other->send(tensors, to, tag);
  const at::Tensor& tensor = only(tensors, "weft:send");
  TORCH_CHECK(to != rank_, "weft:send: rank ", rank_, " cannot send to itself");
  checkRoot(to, size_, "weft:send");
  auto& messages = this->messages("weft:send");
  const OpParams params{"weft:send", timeoutOr(milliseconds(0)), true, this};
  auto work =
      messages.send(tensor, to, tag, params.timeout,
                    engine_->recorder().recordMessage(params, c10d::OpType::SEND, tensor, to, tag));
  engine_->batches().add(work);
  return work;
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int from, int tag) {
  if (auto* other = elsewhere(tensors)) return other->recv(tensors, from, tag);
  const at::Tensor& tensor = only(tensors, "weft:recv");
  TORCH_CHECK(from != rank_, "weft:recv: rank ", rank_, " cannot receive from itself");
  checkRoot(from, size_, "weft:recv");
  auto& messages = this->messages("weft:recv");
  const OpParams params{"weft:recv", timeoutOr(milliseconds(0)), true, this};
  auto work = messages.receive(
      tensor, from, tag, params.timeout,
      engine_->recorder().recordMessage(params, c10d::OpType::RECV, tensor, from, tag));
  engine_->batches().add(work);
  return work;
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  if (auto* other = elsewhere(tensors)) return other->recvAnysource(tensors, tag);
  const at::Tensor& tensor = only(tensors, "weft:recvAnySource");
  auto& messages = this->messages("weft:recvAnySource");
  const OpParams params{"weft:recvAnySource", timeoutOr(milliseconds(0)), true, this};
  auto work =
      messages.receive(tensor, collectives::kAnyRank, tag, params.timeout,
                       engine_->recorder().recordMessage(params, c10d::OpType::RECVANYSOURCE,
                                                         tensor, collectives::kAnyRank, tag));
  engine_->batches().add(work);
  return work;
}

void WeftBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // Here 0 means no time at all: programs use it to see who is late.
  const auto timeout = opts.timeout.count() == 0 ? opts.timeout : timeoutOr(opts.timeout);
  messages("weft:monitored_barrier").monitoredBarrier(timeout, wait_all_ranks);
}

// All tensors between the two calls are on one type of device, taken from the first tensor.
void WeftBackend::startCoalescing() {
  engine_->checkProcess("weft:coalescing");
  engine_->batches().start();
}

WeftBackend::WorkPtr WeftBackend::endCoalescing() {
  for (const WorkPtr& work : delegates_->endCoalescing())
    engine_->batches().add(work);
  return engine_->batches().end();
}

void WeftBackend::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cpu()) return;
  c10d::Backend& backend = delegates_->of(device);
  backend.setBoundDeviceId(device);
  backend.eagerConnectSingleDevice(device);
}

// torch passes only the device's number: -1 is the CPU.
bool WeftBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  if (device < 0) return engine_->allocates();
  const auto cuda = delegates_->made(c10::DeviceType::CUDA);
  return cuda && cuda->supportsTensorAlloc(device);
}

at::Tensor WeftBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(size >= 0, "weft: a tensor of ", size, " elements cannot be allocated");
  if (!options.device().is_cpu()) {
    return delegates_->of(options.device()).allocateTensor(size, options);
  }
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  transport::OwnedBuffer memory = engine_->allocate(bytes);
  if (memory.data == nullptr) return at::empty({size}, options);
  return at::from_blob(
      memory.data, {size}, [owner = std::move(memory.owner)](void*) {}, options);
}

void WeftBackend::setSequenceNumberForGroup() { delegates_->setSequenceNumbers(); }

uint64_t WeftBackend::getSequenceNumberForGroup() {
  return engine_->recorder().calls() + delegates_->sequenceNumbers();
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::child(
    const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const std::lock_guard lock(split_mutex_);
  if (name == last_split_) {
    if (auto made = last_split_backend_.lock()) return made;
  }
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : options_->timeout);
  options->interface = options_->interface;
  options->make_delegate = options_->make_delegate;
  if (opts) {
    options->group_name = opts->group_name;
    options->global_ranks_in_group = opts->global_ranks_in_group;
  }
  c10::intrusive_ptr<c10d::Backend> made =
      c10::make_intrusive<WeftBackend>(store, rank, size, std::move(options));
  last_split_ = name;
  last_split_backend_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto here = std::find(ranks.begin(), ranks.end(), rank_);
  if (here == ranks.end()) return nullptr;
  const std::string name =
      "split " + (opts ? opts->group_name : "") + collectives::ranksAsText(ranks);
  return child(name, store, static_cast<int>(here - ranks.begin()), static_cast<int>(ranks.size()),
               opts);
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  return child("merge " + (opts ? opts->group_name : ""), store, rank, size, opts);
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::shrink(
    const std::vector<int64_t>& excluded, int /*flags*/,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  std::vector<int> stay;
  std::string name = "weft_without";
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
      stay.push_back(rank);
    } else {
      name += "_" + std::to_string(rank);
    }
  }
  TORCH_CHECK(std::find(stay.begin(), stay.end(), rank_) != stay.end(), "weft: rank ", rank_,
              " is excluded and cannot be in the smaller group");
  name += "/" + std::to_string(children_.fetch_add(1)) + "/";
  return split(c10::make_intrusive<c10d::PrefixStore>(name, store_), stay, opts);
}

bool WeftBackend::inOwnProcess() const { return !engine_ || engine_->inOwnProcess(); }

void WeftBackend::abort() {
  if (!inOwnProcess()) return;
  const Error reason(ErrorCode::kShutdown,
                     "the process group was aborted on rank " + std::to_string(rank_));
  engine_->abort(reason);
  messages_->abort(reason);
  delegates_->abort();
}

void WeftBackend::shutdown() {
  if (!inOwnProcess()) return;
  const std::lock_guard lock(shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  engine_->close(kLinger);
  messages_->close();
  delegates_->shutdown();
}

}  // namespace weft::process_group
