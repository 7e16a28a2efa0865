#include "transport/tls/tls_stream.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/io/iovec_cursor.h"

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
  IovecCursor places(into);
  std::size_t count = 0;
  int error = 0;
  for (int i = 0; i < kRecordsPerCall && error == 0 && places.left() > 0 && count < kReadPerCall;
       ++i) {
    const iovec place = places.next();
    std::size_t some = 0;
    error = connection_->read(static_cast<std::byte*>(place.iov_base), place.iov_len, some);
    places.skip(some);
    count += some;
  }
  holds_bytes_ = error == 0;
  if (error == EBADMSG || error == EPROTO) return {0, error, false};
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
  if (broken_) return {0, ENOMEM, false};
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
  IovecCursor rest(from);
  while (rest.left() > 0 && sealed < kSealAtOnce) {
    const iovec next = rest.next();
    const auto* const bytes = static_cast<const std::byte*>(next.iov_base);
    const bool large = next.iov_len >= kLarge;
    const std::size_t some =
        std::min(next.iov_len, TlsConnection::kRecord - (large ? 0 : together_.size()));
    if (large && !together_.empty()) {
      if (!sealOne(together_.data(), together_.size())) return;
      sealed += together_.size();
      together_.clear();
    } else if (large) {
      if (!sealOne(bytes, some)) return;
      sealed += some;
      rest.skip(some);
    } else {
      together_.insert(together_.end(), bytes, bytes + some);
      rest.skip(some);
    }
    if (together_.size() == TlsConnection::kRecord || (rest.left() == 0 && !together_.empty())) {
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
