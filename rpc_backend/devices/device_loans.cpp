#include "rpc_backend/devices/device_loans.h"

namespace weft::rpc {

void DeviceLoans::add(const MessageKey& message, std::shared_ptr<void> kept) {
  const std::lock_guard lock(mutex_);
  lent_.emplace(message, Loan{std::move(kept), {}});
}

template <typename Predicate>
std::vector<DeviceLoans::Loan> DeviceLoans::endIf(Predicate predicate) {
  std::vector<Loan> ended;
  const std::lock_guard lock(mutex_);
  std::erase_if(lent_, [&](auto& loan) {
    const bool ends = predicate(loan.first);
    if (ends) ended.push_back(std::move(loan.second));
    return ends;
  });
  settled_.notify_all();
  return ended;
}

bool DeviceLoans::whenEnded(const MessageKey& message, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(message);
  if (found == lent_.end()) return false;
  found->second.when_ended = std::move(task);
  return true;
}

DeviceLoans::Loan DeviceLoans::end(const MessageKey& message) {
  const std::lock_guard lock(mutex_);
  auto found = lent_.extract(message);
  settled_.notify_all();
  return found.empty() ? Loan{} : std::move(found.mapped());
}

std::vector<DeviceLoans::Loan> DeviceLoans::endAllOf(worker_id_t peer) {
  return endIf([peer](const MessageKey& message) { return message.peer == peer; });
}

std::vector<DeviceLoans::Loan> DeviceLoans::close() {
  {
    const std::lock_guard lock(mutex_);
    tell_ = nullptr;
  }
  return endIf([](const MessageKey&) { return true; });
}

std::size_t DeviceLoans::size() const {
  const std::lock_guard lock(mutex_);
  return lent_.size();
}

void DeviceLoans::borrow() {
  const std::lock_guard lock(mutex_);
  ++borrowed_;
}

void DeviceLoans::giveBack(const MessageKey& message) {
  const std::lock_guard lock(mutex_);
  if (tell_) tell_(message);
  --borrowed_;
  settled_.notify_all();
}

void DeviceLoans::settle(milliseconds limit) const {
  std::unique_lock lock(mutex_);
  settled_.wait_for(lock, limit, [this] { return lent_.empty() && borrowed_ == 0; });
}

}  // namespace weft::rpc
