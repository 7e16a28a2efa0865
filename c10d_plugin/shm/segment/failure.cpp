// How a group ends: one rank writes the reason, all read it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "c10d_plugin/shm/segment/segment.h"

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
  for (int rank = 0; rank < layout_.ranks; ++rank)
    wakeAll(control(rank).progress);
}

// Sequentially consistent: either the writer sees that the group has failed, or the rank that ended
// it sees the writer.
bool Segment::beginWriting(int rank) noexcept {
  control(rank).writing.store(1, std::memory_order_seq_cst);
  if (header().failure.state.load(std::memory_order_seq_cst) == FailureRecord::kNone) return true;
  endWriting(rank);
  return false;
}

void Segment::endWriting(int rank) noexcept {
  control(rank).writing.store(0, std::memory_order_release);
}

bool Segment::awaitWriters(int rank) noexcept {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  for (int other = 0; other < layout_.ranks; ++other) {
    if (other == rank) continue;
    while (control(other).writing.load(std::memory_order_seq_cst) != 0 && !died(other)) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

Error Segment::failure() const {
  const FailureRecord& record = header().failure;
  // The rank that writes it may have died in between.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (record.state.load(std::memory_order_acquire) != FailureRecord::kWritten) {
    if (std::chrono::steady_clock::now() > limit) {
      return {ErrorCode::kPeerLost, "a rank ended the group and died before it could say why"};
    }
    std::this_thread::yield();
  }
  const std::size_t length = std::min<std::size_t>(record.length, FailureRecord::kMaxText);
  return {transport::errorCodeFrom(record.code), std::string(record.text.data(), length)};
}

}  // namespace weft::collectives::shm
