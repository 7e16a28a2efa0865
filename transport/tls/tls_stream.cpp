#include "transport/tls/tls_stream.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace weft::transport {
namespace {

// A smaller buffer shares its record with its neighbours.
constexpr std::size_t kLarge = std::size_t{8} << 10;
constexpr std::size_t kSealAtOnce = std::size_t{128} << 10;  // plain bytes of one write
constexpr std::size_t kReadPerCall = std::size_t{1} << 20;   // then others get their turn
constexpr int kRecordsPerCall = 128;                         // however little they carry
// A record that came in part is in OpenSSL's memory, not in the socket.
constexpr std::size_t kHeldAtMost = std::size_t{32} << 10;

}  // namespace

TlsStream::TlsStream(std::shared_ptr<TlsConnection> connection)
    : LayeredStream(connection->below()), connection_(std::move(connection)) {}

// --- reading ---

IoResult TlsStream::read(std::span<iovec> into) {
  connection_->bio().beginRead();
  std::size_t count = 0;
  int error = 0;
  std::size_t filled = 0;  // of the first entry
  for (int i = 0; i < kRecordsPerCall && error == 0 && !into.empty() && count < kReadPerCall; ++i) {
    const iovec& entry = into.front();
    std::size_t some = 0;
    if (filled < entry.iov_len)
      error = connection_->read(static_cast<std::byte*>(entry.iov_base) + filled,
                                entry.iov_len - filled, some);
    filled += some;
    count += some;
    if (filled < entry.iov_len) continue;
    into = into.subspan(1);
    filled = 0;
  }
  holds_bytes_ = error == 0;
  if (error == EBADMSG) return {0, EBADMSG, false};
  if (count > 0) return {count, 0, false};
  return error == ENODATA ? IoResult{0, 0, true} : IoResult{0, error, false};
}

void TlsStream::wakeAt(std::size_t bytes) {
  below_->wakeAt(bytes > 2 * kHeldAtMost ? bytes - kHeldAtMost : 1);
}

// --- writing ---

IoResult TlsStream::write(std::span<iovec> from, std::span<const int> fds) {
  if (!fds.empty()) return {0, EOPNOTSUPP, false};
  if (records_.empty()) seal(from);
  if (broken_) return {0, EBADMSG, false};
  if (records_.empty()) return {};
  TlsBio& output = connection_->bio();
  if (const int error = output.flush(); error != 0 && error != EAGAIN) return {0, error, false};
  const IoResult result = records_.takeSent(output.sent());
  if (records_.empty()) output.clear();
  return result;
}

// Makes records of what is given, as much as one write should take.
void TlsStream::seal(std::span<const iovec> from) {
  connection_->bio().clear();
  std::size_t sealed = 0;
  std::size_t offset = 0;  // in the first entry
  while (!from.empty() && sealed < kSealAtOnce) {
    const auto* const bytes = static_cast<const std::byte*>(from.front().iov_base) + offset;
    const std::size_t left = from.front().iov_len - offset;
    const bool large = left >= kLarge;
    const std::size_t some =
        std::min(left, TlsConnection::kRecord - (large ? 0 : together_.size()));
    if (large && !together_.empty()) {
      if (!sealOne(together_.data(), together_.size())) return;
      sealed += together_.size();
      together_.clear();
    } else if (large) {
      if (!sealOne(bytes, some)) return;
      sealed += some;
      offset += some;
    } else {
      together_.insert(together_.end(), bytes, bytes + some);
      offset += some;
    }
    if (offset == from.front().iov_len) {
      from = from.subspan(1);
      offset = 0;
    }
    if (together_.size() == TlsConnection::kRecord || (from.empty() && !together_.empty())) {
      if (!sealOne(together_.data(), together_.size())) return;
      sealed += together_.size();
      together_.clear();
    }
  }
}

bool TlsStream::sealOne(const std::byte* bytes, std::size_t count) {
  if (!connection_->write(bytes, count)) broken_ = true;
  records_.add(connection_->bio().written(), count);
  return !broken_;
}

}  // namespace weft::transport
