#include "rpc_backend/codec/device_transfer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/core/log.h"
#include "transport/base/environment.h"
#include "transport/base/os/secure_random.h"

namespace weft::rpc {

namespace {

constexpr milliseconds kSettle{2000};
constexpr std::size_t kExpectedBytes = sizeof(std::int64_t);

// Why memory cannot be shared over such a link; nothing: it can.
std::optional<std::string> obstacle(const std::string& transport) {
  if (transport != "unix") return "it is not on this host, or not reached by a Unix socket";
  if (environment::value(environment::kSharedMemory) == "0") return "WEFT_SHARED_MEMORY is 0";
  return std::nullopt;
}

}  // namespace

DeviceTransfer::DeviceTransfer(AgentContext& context, MessageSender& sender)
    : context_(context),
      sender_(sender),
      loans_(std::make_shared<DeviceLoans>(
          [this](const MessageKey& message) { tellReturned(message); })) {}

std::shared_ptr<DeviceMemory> DeviceTransfer::memory() {
  {
    const std::lock_guard lock(mutex_);
    if (memory_ != nullptr || closed_) return memory_;
  }
  // Two threads may make one; that of the second is dropped after the lock.
  std::shared_ptr<DeviceMemory> made = makeDeviceMemory();
  const std::lock_guard lock(mutex_);
  if (memory_ == nullptr && !closed_) memory_ = made;
  return memory_;
}

// --- lending ---

bool DeviceTransfer::reaches(worker_id_t peer, c10::Device device, const std::string& name) {
  if (!device.is_cuda() || memory() == nullptr) return false;
  const PathKey key{peer, device.index()};
  {
    const std::lock_guard lock(mutex_);
    const State state = paths_[key].state;
    if (state != State::kUnknown) return state == State::kWorks;
  }
  // Before there is a connection nobody knows whether it will be one within the host.
  const std::string transport = sender_.transportTo(peer);
  if (transport.empty()) return false;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    Path& path = paths_[key];
    if (path.state != State::kUnknown) return false;  // another thread asks
    number = next_probe_++;
    path = {State::kAsked, number, name};
  }
  if (const auto why = obstacle(transport)) {
    refuse(key, *why);
  } else {
    ask(key, number);
  }
  return false;
}

void DeviceTransfer::ask(const PathKey& key, std::uint64_t number) {
  std::int64_t expected = 0;
  std::array<std::uint8_t, kExpectedBytes> random{};
  if (transport::fillRandom(random))
    return refuse(key, "there are no random numbers to probe with");
  std::memcpy(&expected, random.data(), random.size());
  const MessageKey message{key.first, WireKind::kControl, number};
  try {
    const auto options = at::TensorOptions().dtype(at::kLong).device(at::kCUDA, key.second);
    const at::Tensor tensor = at::full({}, expected, options);
    const auto token = lend(message, {&tensor, 1});
    std::string text(reinterpret_cast<const char*>(&expected), kExpectedBytes);
    text.append(reinterpret_cast<const char*>(token.data()), token.size());
    const auto error =
        sender_.sendControl(key.first, WireKind::kControl, ControlType::kDeviceProbe, number, text);
    if (!error) return;
    takeBack(message);
    logDebug("a device probe was not sent: " + error.text());
    const std::lock_guard lock(mutex_);
    paths_.erase(key);  // the next tensor asks again
  } catch (const c10::Error& error) {
    takeBack(message);
    refuse(key, error.what_without_backtrace());
  }
}

void DeviceTransfer::refuse(const PathKey& key, const std::string& why) {
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    Path& path = paths_[key];
    path.state = State::kRefused;
    name = path.name;
  }
  logInfo(context_.me() + " sends tensors on cuda:" + std::to_string(key.second) + " to worker '" +
          name + "' through host memory: " + why);
}

std::vector<std::byte> DeviceTransfer::lend(const MessageKey& message,
                                            std::span<const at::Tensor> tensors) {
  const auto device_memory = memory();
  TORCH_CHECK(device_memory != nullptr, context_.me(), " has shut down");
  DeviceMemory::Export made = device_memory->exportTensors(tensors);
  loans_->add(message, std::move(made.kept));
  for (const at::Tensor& tensor : tensors)
    bytes_lent_ += tensor.nbytes();
  return std::move(made.token);
}

void DeviceTransfer::takeBack(const MessageKey& message) {
  auto loan = loans_->end(message);
  if (loan.kept == nullptr) return;
  if (loan.when_ended) loan.when_ended();
  context_.dropElsewhere(std::move(loan));
}

bool DeviceTransfer::whenReturned(const MessageKey& message, std::function<void()> task) {
  return loans_->whenEnded(message, std::move(task));
}

void DeviceTransfer::onReturned(worker_id_t from, std::uint64_t id, const std::string& kind) {
  if (kind.size() != 1) return;
  takeBack({from, static_cast<WireKind>(kind.front() - '0'), id});
}

// --- borrowing ---

std::shared_ptr<BorrowedMemory> DeviceTransfer::borrow(const MessageKey& message) const {
  return std::make_shared<BorrowedMemory>(loans_, message);
}

std::vector<at::Tensor> DeviceTransfer::copyFrom(std::shared_ptr<BorrowedMemory> borrowed,
                                                 std::span<const std::byte> token,
                                                 std::span<const DeviceTensorSpec> wanted) {
  const auto device_memory = memory();
  TORCH_CHECK(device_memory != nullptr, context_.me(),
              " has not loaded libweft_cuda.so, which reads another worker's device memory");
  const worker_id_t peer = borrowed->sender();
  return device_memory->copyFrom(peer, token, wanted, std::move(borrowed));
}

void DeviceTransfer::tellReturned(const MessageKey& message) {
  transport::Endpoint* const endpoint = sender_.endpoint().get();
  if (endpoint == nullptr) return;
  const char kind = static_cast<char>('0' + static_cast<int>(message.kind));
  // On the loop thread, which does not wait for room: this thread may be one of CUDA's.
  endpoint->runAfter(milliseconds(0), [this, message, kind] {
    const auto error =
        sender_.sendControl(message.peer, WireKind::kControl, ControlType::kDeviceReturned,
                            message.id, std::string(1, kind));
    if (error) logDebug("a return of device memory was not sent: " + error.text());
  });
}

// --- probing ---

std::string DeviceTransfer::tryProbe(worker_id_t from, const std::string& text) {
  try {
    const auto device_memory = memory();
    if (device_memory == nullptr) return context_.me() + " has not loaded libweft_cuda.so";
    if (text.size() < kExpectedBytes) return "the probe is malformed";
    std::int64_t expected = 0;
    std::memcpy(&expected, text.data(), kExpectedBytes);
    device_memory->probe(from, std::as_bytes(std::span(text)).subspan(kExpectedBytes), expected);
    return {};
  } catch (const c10::Error& error) {
    return context_.me() + " cannot read its memory: " + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return context_.me() + " cannot read its memory: " + error.what();
  }
}

void DeviceTransfer::answerProbe(worker_id_t from, std::uint64_t id, const std::string& problem) {
  const auto error =
      sender_.sendControl(from, WireKind::kControl, ControlType::kDeviceProbed, id, problem);
  if (error) logDebug("the answer to a device probe was not sent: " + error.text());
}

void DeviceTransfer::onProbe(worker_id_t from, std::uint64_t id, std::string text,
                             std::shared_ptr<void> held) {
  if (held == nullptr) {
    return answerProbe(from, id,
                       transport::resourceExhausted(
                           context_.me() + " has no room for another probe from that worker"));
  }
  // On a worker: opening memory takes long, and before the agent serves CUDA may not be there.
  context_.workers.run([this, alive = context_.keepAlive(), from, id, text = std::move(text),
                        held = std::move(held)] { answerProbe(from, id, tryProbe(from, text)); });
}

void DeviceTransfer::onProbed(worker_id_t from, std::uint64_t id, const std::string& problem) {
  takeBack({from, WireKind::kControl, id});
  std::optional<PathKey> key;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(paths_.begin(), paths_.end(), [&](const auto& path) {
      return path.first.first == from && path.second.state == State::kAsked &&
             path.second.probe == id;
    });
    if (found == paths_.end()) return;
    key = found->first;
    if (problem.empty()) found->second.state = State::kWorks;
  }
  if (!problem.empty()) refuse(*key, problem);
}

// --- the end ---

void DeviceTransfer::onPeerLost(worker_id_t peer) {
  if (auto ended = loans_->endAllOf(peer); !ended.empty()) context_.dropElsewhere(std::move(ended));
  const std::lock_guard lock(mutex_);
  std::erase_if(paths_, [peer](const auto& path) { return path.first.first == peer; });
  if (memory_ == nullptr) return;
  static_cast<void>(transport::thrownBy([&] {
    context_.droppers.run([device_memory = memory_, peer] { device_memory->forget(peer); });
  }));
}

void DeviceTransfer::settle() const {
  if (!context_.hurried) loans_->settle(kSettle);
}

void DeviceTransfer::close() {
  const auto ended = loans_->close();
  std::shared_ptr<DeviceMemory> last;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  closed_ = true;
  last.swap(memory_);
}

}  // namespace weft::rpc
