#include "jit_ops/call/fetch_hold.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "rpc_backend/core/log.h"
#include "transport/base/thrown.h"

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

FetchHold::FetchHold(rpc::torch_rrefs::RRefPtr rref) : rref_(std::move(rref)) {
  const std::lock_guard lock(g_mutex);
  ++fetched()[rref_.get()].fetches;
}

FetchHold::~FetchHold() {
  bool dropped = false;
  {
    const std::lock_guard lock(g_mutex);
    const auto own = fetched().find(rref_.get());
    if (--own->second.fetches > 0) return;
    dropped = own->second.dropped;
    fetched().erase(own);
  }
  if (!dropped) return;
  if (const auto thrown = transport::thrownBy([&] { rref_->tryDel(); }))
    rpc::logWarning("a reference could not be dropped: " + *thrown);
}

void FetchHold::drop(RRef& rref) {
  {
    const std::lock_guard lock(g_mutex);
    if (const auto own = fetched().find(&rref); own != fetched().end()) {
      own->second.dropped = true;
      return;
    }
  }
  rref.tryDel();
}

bool FetchHold::isDropped(const RRef& rref) {
  const std::lock_guard lock(g_mutex);
  const auto own = fetched().find(&rref);
  return own != fetched().end() && own->second.dropped;
}

}  // namespace weft::ops
