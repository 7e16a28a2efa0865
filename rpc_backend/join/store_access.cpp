#include "rpc_backend/join/store_access.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "transport/base/interruption.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {

// After as long as the wait has lasted, at first; then a twentieth of it.
steady_clock::duration untilNextLook(steady_clock::duration waited) {
  constexpr steady_clock::duration kShortest = milliseconds(1);
  constexpr steady_clock::duration kSoon = milliseconds(50);
  constexpr steady_clock::duration kLongest = milliseconds(250);
  return std::max(kShortest, std::min({waited, std::max(kSoon, waited / 20), kLongest}));
}

}  // namespace

bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit,
                 steady_clock::time_point since) {
  const auto end = steady_clock::now() + limit;
  while (!store.check(keys)) {
    auto now = steady_clock::now();
    if (now >= end) return false;
    for (const auto look = std::min(end, now + untilNextLook(now - since)); now < look;
         now = steady_clock::now()) {
      transport::raiseIfInterrupted();
      std::this_thread::sleep_for(
          std::min<steady_clock::duration>(look - now, transport::kInterruptEvery));
    }
  }
  return true;
}

std::vector<std::int32_t> absentRanks(c10d::Store& store, std::span<const std::int32_t> ranks,
                                      const std::function<std::string(std::int32_t)>& key_of,
                                      std::size_t most) {
  std::vector<std::string> keys;
  for (const std::int32_t rank : ranks)
    keys.push_back(key_of(rank));
  if (keys.empty() || most == 0 || store.check(keys)) return {};
  if (ranks.size() == 1) return {ranks.front()};
  const auto half = ranks.size() / 2;
  auto absent = absentRanks(store, ranks.first(half), key_of, most);
  const auto rest = absentRanks(store, ranks.subspan(half), key_of, most - absent.size());
  absent.insert(absent.end(), rest.begin(), rest.end());
  return absent;
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
