#include "transport/bulk/bulk_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

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
  places_ = IovecCursor(in_);
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
  places_ = IovecCursor();
  arrivals_.reset();
}

// --- the bulk thread ---

int BulkReader::readSome() {
  std::uint64_t read = 0;
  while (read < kBulkBytesPerTurn) {
    std::size_t asked = 0;
    const IoResult result = readOnce(asked);
    if (asked == 0) return 0;
    if (result.end) return ENODATA;
    if (result.error != 0) return result.error;
    read += result.count;
    if (result.count < asked && !stream_.holdsBytes()) break;
  }
  return EAGAIN;
}

// `asked` stays 0 when nothing is to be read.
IoResult BulkReader::readOnce(std::size_t& asked) {
  static thread_local std::array<std::byte, kDiscardBytes> discarded;
  IoResult result;
  std::uint64_t left = 0;
  bool whole = false;
  std::array<iovec, IovecCursor::kMaxEntries> entries;
  std::span<iovec> target;
  std::shared_ptr<Arrivals> told;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (places_.left() == 0) return result;
    target = std::span(entries).first(places_.first(places_.left(), entries));
    if (target[0].iov_base == nullptr) {
      target = target.first(1);
      target[0] = {discarded.data(), std::min(discarded.size(), target[0].iov_len)};
    } else {
      const auto skipped = std::ranges::find(target, nullptr, &iovec::iov_base);
      target = target.first(static_cast<std::size_t>(skipped - target.begin()));
    }
    asked = bytesOf(target);
    result = stream_.read(target);
    places_.skip(result.count);
    left = places_.left();
    whole = left == 0;
    told = whole ? std::move(arrivals_) : arrivals_;
  }
  received_.fetch_add(result.count, std::memory_order_relaxed);
  if (told != nullptr) IovecCursor(target).skip(result.count, told.get());
  if (whole) {
    if (arrival_.exchange(Arrival::kDone) == Arrival::kAwaited) on_arrived_();
  } else {
    stream_.wakeAt(left);
  }
  return result;
}

}  // namespace weft::transport
