// How a group ends: one rank writes why, all read it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "c10d_plugin/shm/segment.h"

namespace weft::collectives::shm {

void Segment::fail(const Error& reason) noexcept {
  FailureRecord& record = header().failure;
  std::uint32_t none = FailureRecord::kNone;
  if (record.state.compare_exchange_strong(none, FailureRecord::kBeingWritten)) {
    const std::size_t length = std::min(reason.text().size(), FailureRecord::kMaxText);
    std::memcpy(record.text.data(), reason.text().data(), length);
    record.length = static_cast<std::uint32_t>(length);
    record.code = static_cast<std::uint32_t>(reason.code());
    record.state.store(FailureRecord::kWritten, std::memory_order_seq_cst);
  }
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    wakeAll(control(rank).progress);
    wakeAll(control(rank).presence);
  }
}

Error Segment::failure() const {
  const FailureRecord& record = header().failure;
  // Whoever writes it may have died just there.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (record.state.load(std::memory_order_acquire) != FailureRecord::kWritten) {
    if (std::chrono::steady_clock::now() > patience) {
      return {ErrorCode::kPeerLost, "a rank ended the group and died before it could say why"};
    }
    std::this_thread::yield();
  }
  const std::size_t length = std::min<std::size_t>(record.length, FailureRecord::kMaxText);
  const std::uint32_t code = record.code;
  const bool known = code > static_cast<std::uint32_t>(ErrorCode::kOk) &&
                     code <= static_cast<std::uint32_t>(ErrorCode::kSystem);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kProtocol,
          std::string(record.text.data(), length)};
}

}  // namespace weft::collectives::shm
