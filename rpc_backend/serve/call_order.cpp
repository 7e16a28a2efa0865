#include "rpc_backend/serve/call_order.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace weft::rpc {

void CallOrder::add(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams) {
    if (stream.query()) continue;
    c10::Event end(stream.device_type());
    end.record(stream);
    const std::lock_guard lock(mutex_);
    unfinished_.push_back(std::move(end));
  }
}

void CallOrder::follow() {
  const std::lock_guard lock(mutex_);
  std::erase_if(unfinished_, [](const c10::Event& end) { return end.query(); });
  for (const c10::Event& end : unfinished_) {
    const c10::impl::VirtualGuardImpl device(end.device_type());
    end.block(device.getStream(end.device()));
  }
}

void CallOrder::clear() {
  const std::lock_guard lock(mutex_);
  unfinished_.clear();
}

}  // namespace weft::rpc
