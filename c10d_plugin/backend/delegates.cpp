#include "c10d_plugin/backend/delegates.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

namespace weft::process_group {

const c10::intrusive_ptr<c10d::Backend>& Delegates::of(c10::Device device) {
  Slot& slot = slots_.at(static_cast<std::size_t>(device.type()));
  checkNotEnded(device);
  std::call_once(slot.once, [&] { make(device, slot); });
  return slot.owner;
}

void Delegates::checkNotEnded(c10::Device device) const {
  TORCH_CHECK(!ended_.load(), "weft: the process group has ended, and takes no tensors on ",
              c10::DeviceTypeName(device.type(), true), " any more");
}

void Delegates::make(c10::Device device, Slot& slot) {
  const std::string name = c10::DeviceTypeName(device.type(), true);
  DelegateSpec spec;
  {
    const std::lock_guard lock(mutex_);
    spec = spec_;
  }
  spec.device = device;
  spec.store = c10::make_intrusive<c10d::PrefixStore>("weft_" + name + "/", spec.store);
  auto backend = make_ ? make_(spec) : nullptr;
  TORCH_CHECK(backend, "weft: this process group has no backend for tensors on ", name,
              "; it takes tensors on the CPU, and on CUDA where PyTorch has NCCL");
  TORCH_CHECK(backend->getRank() == spec.rank && backend->getSize() == spec.size, "weft: rank ",
              spec.rank, " of ", spec.size, " was given a backend for ", name, " that is rank ",
              backend->getRank(), " of ", backend->getSize());
  slot.owner = std::move(backend);
  slot.backend.store(slot.owner.get(), std::memory_order_release);
  // From here on each() reaches it. What the group was told before, perhaps while it was made, it
  // hears now.
  std::string uid;
  std::chrono::milliseconds timeout{};
  {
    const std::lock_guard lock(mutex_);
    uid = uid_;
    timeout = spec_.timeout;
  }
  slot.owner->setGroupUid(uid);
  if (timeout != spec.timeout) slot.owner->setTimeout(timeout);
  if (ended_.load()) slot.owner->abort();
  checkNotEnded(device);
}

c10::intrusive_ptr<c10d::Backend> Delegates::made(c10::DeviceType device) const {
  const Slot& slot = slots_.at(static_cast<std::size_t>(device));
  if (slot.backend.load(std::memory_order_acquire) == nullptr) return nullptr;
  return slot.owner;
}

void Delegates::setGroupUid(const std::string& uid) {
  {
    const std::lock_guard lock(mutex_);
    uid_ = uid;
  }
  each([&](c10d::Backend& backend) { backend.setGroupUid(uid); });
}

void Delegates::setTimeout(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    spec_.timeout = timeout;
  }
  each([&](c10d::Backend& backend) { backend.setTimeout(timeout); });
}

std::uint64_t Delegates::sequenceNumbers() const {
  std::uint64_t sum = 0;
  each([&](c10d::Backend& backend) { sum += backend.getSequenceNumberForGroup(); });
  return sum;
}

void Delegates::setSequenceNumbers() {
  each([](c10d::Backend& backend) { backend.setSequenceNumberForGroup(); });
}

bool Delegates::failed() const {
  bool found = false;
  each([&](c10d::Backend& backend) { found |= backend.getError() != c10d::ErrorType::SUCCESS; });
  return found;
}

void Delegates::abort() {
  ended_.store(true);
  each([](c10d::Backend& backend) { backend.abort(); });
}

void Delegates::shutdown() {
  ended_.store(true);
  each([](c10d::Backend& backend) { backend.shutdown(); });
}

}  // namespace weft::process_group
