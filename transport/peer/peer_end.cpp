#include "transport/peer/peer_end.h"

#include <string>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"

namespace weft::transport {

bool PeerEnd::mayReturn() const noexcept {
  const ErrorCode code = reason().code();
  return context_.options.reunite &&
         (code == ErrorCode::kPeerLost || code == ErrorCode::kConnectFailed ||
          code == ErrorCode::kDuplicate);
}

void PeerEnd::tellUnsent(const FrameQueue::Frames& unsent) {
  for (const OutFrame& frame : unsent)
    tell([&] { context_.handler.onSendFailed(loss_.rank, frame.header(), loss_.reason); });
}

void PeerEnd::tellLost() {
  tell([&] { context_.handler.onPeerLost(loss_); });
}

void PeerEnd::tellDisplaced() {
  tell([&] { context_.handler.onDisplaced(loss_); });
}

template <typename Call>
void PeerEnd::tell(Call call) {
  const auto thrown = thrownBy(call);
  if (!thrown) return;
  static_cast<void>(thrownBy([&] {
    log(LogLevel::kError,
        "a handler of the end of " + describePeer(loss_.name, loss_.rank) + " threw: " + *thrown);
  }));
}

}  // namespace weft::transport
