#include "rpc_backend/rref/early_values.h"

#include <torch/csrc/distributed/rpc/rref_context.h>

#include <stdexcept>
#include <utility>

namespace weft::rpc {

namespace {

using torch::distributed::rpc::RRefContext;

void endWaits(const RRefKey& value, const std::string& why) {
  const auto empty = torch_rrefs::findEmpty(value);
  if (!empty) return;
  torch_rrefs::endOwnWaits(*empty, std::make_exception_ptr(std::runtime_error(why)));
}

}  // namespace

void EarlyValues::keep(const RRefKey& value) {
  if (value.created_on == self_) return;  // torch keeps it until then
  // end() comes after the value, so it either finds the key or leaves nothing empty to be found.
  const std::lock_guard lock(mutex_);
  if (torch_rrefs::findEmpty(value) && kept_.insert(value).second)
    RRefContext::getInstance().addForkOfOwnerIfNotPresent(toTorch(value), toTorch(value));
}

void EarlyValues::await(const RRefKey& value) {
  // In this order, so that a failure meanwhile finds it.
  keep(value);
  if (const auto why = failed_.find(value)) static_cast<void>(fail(value, *why));
}

EarlyValues::RRefPtr EarlyValues::end(const RRefKey& value) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_.erase(value) == 0) return {};
  }
  return RRefContext::getInstance().delForkOfOwner(toTorch(value), toTorch(value));
}

EarlyValues::RRefPtr EarlyValues::fail(const RRefKey& value, const std::string& why) {
  failed_.add(value, why);
  endWaits(value, why);
  return end(value);
}

std::vector<EarlyValues::RRefPtr> EarlyValues::failAll(
    const std::function<bool(const RRefKey&)>& which, const std::string& why) {
  std::vector<RRefKey> chosen;
  {
    const std::lock_guard lock(mutex_);
    for (const RRefKey& value : kept_) {
      if (which(value)) chosen.push_back(value);
    }
  }
  std::vector<RRefPtr> last;
  for (const RRefKey& value : chosen) {
    if (auto dropped = fail(value, why)) last.push_back(std::move(dropped));
  }
  return last;
}

}  // namespace weft::rpc
