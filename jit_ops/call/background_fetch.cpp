#include "jit_ops/call/background_fetch.h"

#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "rpc_backend/core/log.h"

namespace weft::ops {

namespace {

using torch::distributed::rpc::RRef;

struct Fetched {
  std::size_t fetches = 0;
  bool dropped = false;
};

std::mutex g_mutex;

// References that are being fetched. Never destroyed: answers may come while the process exits.
std::unordered_map<const RRef*, Fetched>& fetched() {
  static auto* const references = new std::unordered_map<const RRef*, Fetched>();
  return *references;
}

}  // namespace

BackgroundFetch::BackgroundFetch(RRefPtr rref) : rref_(std::move(rref)) {
  const std::lock_guard lock(g_mutex);
  ++fetched()[rref_.get()].fetches;
}

BackgroundFetch::~BackgroundFetch() {
  bool dropped = false;
  {
    const std::lock_guard lock(g_mutex);
    const auto own = fetched().find(rref_.get());
    if (--own->second.fetches > 0) return;
    dropped = own->second.dropped;
    fetched().erase(own);
  }
  if (!dropped) return;
  try {
    rref_->tryDel();
  } catch (const std::exception& error) {
    rpc::logWarning(std::string("a reference could not be dropped: ") + error.what());
  }
}

void BackgroundFetch::drop(RRef& rref) {
  {
    const std::lock_guard lock(g_mutex);
    if (const auto own = fetched().find(&rref); own != fetched().end()) {
      own->second.dropped = true;
      return;
    }
  }
  rref.tryDel();
}

bool BackgroundFetch::isDropped(const RRef& rref) {
  const std::lock_guard lock(g_mutex);
  const auto own = fetched().find(&rref);
  return own != fetched().end() && own->second.dropped;
}

}  // namespace weft::ops
