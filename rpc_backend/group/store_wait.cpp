#include "rpc_backend/group/store_wait.h"

#include <algorithm>
#include <thread>

namespace weft::rpc {

bool waitForKeys(c10d::Store& store, const std::vector<std::string>& keys,
                 std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestNap{50};
  const auto end = std::chrono::steady_clock::now() + limit;
  milliseconds nap{1};
  while (!store.check(keys)) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(std::min(nap, left));
    nap = std::min(nap * 2, kLongestNap);
  }
  return true;
}

}  // namespace weft::rpc
