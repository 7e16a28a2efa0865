#include "transport/bulk/bulk_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kEntriesPerRead = 64;
constexpr std::size_t kDiscardBytes = std::size_t{64} << 10;

}  // namespace

BulkReader::BulkReader(Stream& stream, std::atomic<std::uint64_t>& received,
                       std::function<void()> on_arrived)
    : stream_(stream), received_(received), on_arrived_(std::move(on_arrived)) {}

// --- the endpoint's loop thread ---

void BulkReader::expect(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) {
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(arrival_.load() == Arrival::kDone, "one half after the other");
  in_.assign(into.begin(), into.end());
  index_ = 0;
  arrivals_ = std::move(arrivals);
  arrival_.store(Arrival::kReading);
}

bool BulkReader::arrived() {
  Arrival expected = Arrival::kReading;
  arrival_.compare_exchange_strong(expected, Arrival::kAwaited);
  return expected == Arrival::kDone;
}

void BulkReader::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_.clear();
  index_ = 0;
  arrivals_.reset();
}

// --- the bulk thread ---

BulkTurn BulkReader::readSome() {
  std::uint64_t read = 0;
  while (read < kBulkBytesPerTurn) {
    std::size_t asked = 0;
    const IoResult result = readOnce(asked);
    if (asked == 0) return {BulkTurn::Kind::kDone};
    if (result.error == EAGAIN) break;
    if (result.error != 0 || result.end) return {BulkTurn::Kind::kBroken, result.error};
    read += result.count;
    if (result.count < asked && !stream_.holdsBytes()) break;
  }
  return {BulkTurn::Kind::kBlocked};
}

// `asked` stays 0 when nothing is to be read.
IoResult BulkReader::readOnce(std::size_t& asked) {
  static thread_local std::array<std::byte, kDiscardBytes> discarded;
  IoResult result;
  std::uint64_t left = 0;
  bool whole = false;
  std::array<iovec, kEntriesPerRead> entries;
  std::shared_ptr<Arrivals> told;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index_ == in_.size()) return result;
    std::size_t used = 0;
    if (in_[index_].iov_base == nullptr) {
      entries[used++] = {discarded.data(), std::min(discarded.size(), in_[index_].iov_len)};
    } else {
      for (std::size_t i = index_; i < in_.size() && used < entries.size(); ++i) {
        if (in_[i].iov_base == nullptr) break;
        entries[used++] = in_[i];
      }
    }
    const auto target = std::span(entries).first(used);
    asked = bytesOf(target);
    result = stream_.read(target);
    advance(result.count);
    whole = index_ == in_.size();
    left = bytesOf(std::span(in_).subspan(index_));
    told = whole ? std::move(arrivals_) : arrivals_;
  }
  received_.fetch_add(result.count, std::memory_order_relaxed);
  if (told != nullptr) tell(*told, entries, result.count);
  if (whole) {
    if (arrival_.exchange(Arrival::kDone) == Arrival::kAwaited) on_arrived_();
  } else {
    stream_.wakeAt(left);
  }
  return result;
}

// So many bytes have come into the entries, in order.
void BulkReader::tell(Arrivals& arrivals, std::span<const iovec> entries, std::size_t count) {
  for (std::size_t i = 0; count > 0; ++i) {
    const std::size_t some = std::min(count, entries[i].iov_len);
    arrivals.onBytes(static_cast<const std::byte*>(entries[i].iov_base), some);
    count -= some;
  }
}

void BulkReader::advance(std::size_t count) {
  while (count > 0) {
    iovec& entry = in_[index_];
    const std::size_t some = std::min(count, entry.iov_len);
    if (entry.iov_base != nullptr) entry.iov_base = static_cast<std::byte*>(entry.iov_base) + some;
    entry.iov_len -= some;
    count -= some;
    if (entry.iov_len == 0) ++index_;
  }
}

}  // namespace weft::transport
