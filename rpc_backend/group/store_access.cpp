#include "rpc_backend/group/store_access.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "transport/base/interruption.h"

namespace weft::rpc {

bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit) {
  constexpr milliseconds kLongestNap{50};
  const auto end = std::chrono::steady_clock::now() + limit;
  milliseconds nap{1};
  while (!store.check(keys)) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    transport::raiseIfInterrupted();
    std::this_thread::sleep_for(std::min(nap, left));
    nap = std::min(nap * 2, kLongestNap);
  }
  return true;
}

void throwServerGone(const c10::intrusive_ptr<c10d::Store>& store,
                     const c10::DistNetworkError& error) {
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  const auto served = prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
  std::string where;
  if (const auto* tcp = dynamic_cast<const c10d::TCPStore*>(served.get())) {
    where = "at " + tcp->getHost() + ":" + std::to_string(tcp->getPort()) + " ";
  }
  C10_THROW_ERROR(DistNetworkError,
                  "the process that serves the Store " + where +
                      "(usually rank 0) has ended or closed the connection (" +
                      error.what_without_backtrace() +
                      "); without it workers can neither form a group nor agree to end one");
}

}  // namespace weft::rpc
