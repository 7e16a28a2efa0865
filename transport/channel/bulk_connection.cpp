#include "transport/channel/bulk_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/thrown.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMaxEntries = 64;
// Then other bulk connections get their turn.
constexpr std::uint64_t kBytesPerTurn = std::uint64_t{8} << 20;
constexpr std::size_t kDiscardBytes = std::size_t{64} << 10;

}  // namespace

std::shared_ptr<BulkConnection> BulkConnection::open(EventLoop& loop,
                                                     std::shared_ptr<Stream> stream,
                                                     std::shared_ptr<BulkCounts> counts,
                                                     Events events) {
  std::shared_ptr<BulkConnection> bulk(
      new BulkConnection(loop, std::move(stream), std::move(counts), std::move(events)));
  loop.post([bulk] {
    if (bulk->cut_.load()) return;
    bulk->poll_.emplace(bulk->loop_, bulk->stream_->pollFd(),
                        [raw = bulk.get()](EventLoop::Poll::Ready ready) { raw->onReady(ready); });
  });
  return bulk;
}

BulkConnection::BulkConnection(EventLoop& loop, std::shared_ptr<Stream> stream,
                               std::shared_ptr<BulkCounts> counts, Events events)
    : loop_(loop),
      stream_(std::move(stream)),
      counts_(std::move(counts)),
      events_(std::move(events)) {}

// --- any thread ---

void BulkConnection::push(std::vector<OwnedBuffer> half, std::shared_ptr<const Filling> filling,
                          std::uint64_t before) {
  std::uint64_t bytes = 0;
  for (const OwnedBuffer& buffer : half)
    bytes += buffer.size;
  unwritten_.fetch_add(bytes);
  const std::lock_guard<std::mutex> lock(push_mutex_);
  if (filling != nullptr) pushed_unfilled_ = {std::move(filling), before, bytes_pushed_};
  bytes_pushed_ += bytes;
  std::move(half.begin(), half.end(), std::back_inserter(pushed_));
}

void BulkConnection::wake() {
  {
    const std::lock_guard<std::mutex> lock(push_mutex_);
    if (std::exchange(wake_posted_, true)) return;
  }
  loop_.post([self = shared_from_this()] { self->guarded(&BulkConnection::writeSome); });
}

// --- the endpoint's loop thread ---

void BulkConnection::read(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) {
  {
    const std::lock_guard<std::mutex> lock(read_mutex_);
    WEFT_CHECK(arrival_.load() == Arrival::kDone, "one half after the other");
    in_.assign(into.begin(), into.end());
    in_index_ = 0;
    arrivals_ = std::move(arrivals);
    arrival_.store(Arrival::kReading);
  }
  loop_.post([self = shared_from_this()] { self->guarded(&BulkConnection::readSome); });
}

bool BulkConnection::arrived() {
  Arrival expected = Arrival::kReading;
  arrival_.compare_exchange_strong(expected, Arrival::kAwaited);
  return expected == Arrival::kDone;
}

void BulkConnection::cut() {
  cut_.store(true);
  stream_->breakOff();
  {
    const std::lock_guard<std::mutex> lock(read_mutex_);
    in_.clear();
    arrivals_.reset();
  }
  std::deque<OwnedBuffer> gone;
  {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    gone.swap(out_);
    unfilled_ = {};
  }
  loop_.post([self = shared_from_this()] { self->poll_.reset(); });
}

// --- the bulk thread ---

void BulkConnection::onReady(EventLoop::Poll::Ready ready) {
  // A broken stream is found by reading or writing it.
  if (ready.readable || ready.error != 0) guarded(&BulkConnection::readSome);
  if (ready.writable || ready.error != 0) guarded(&BulkConnection::writeSome);
  // Not broken, and nothing would tell when it is ready.
  if (ready.error != 0 && (want_read_ || want_write_)) fail(ready.error);
}

// Bytes that were moved and not counted are lost with what was thrown.
void BulkConnection::guarded(void (BulkConnection::*step)()) {
  if (thrownBy([&] { (this->*step)(); })) fail(ENOMEM);
}

void BulkConnection::readSome() {
  std::uint64_t read = 0;
  while (read < kBytesPerTurn) {
    std::size_t asked = 0;
    const IoResult result = readOnce(asked);
    if (asked == 0) return want(false, want_write_);
    if (result.error == EAGAIN) break;
    if (result.error != 0 || result.end) return fail(result.error);
    read += result.count;
    if (result.count < asked && !stream_->holdsBytes()) break;
  }
  want(true, want_write_);
  if (stream_->holdsBytes())
    loop_.post([self = shared_from_this()] { self->guarded(&BulkConnection::readSome); });
}

// `asked` stays 0 when nothing is to be read.
IoResult BulkConnection::readOnce(std::size_t& asked) {
  static thread_local std::array<std::byte, kDiscardBytes> discarded;
  IoResult result;
  std::uint64_t left = 0;
  bool whole = false;
  std::array<iovec, kMaxEntries> entries;
  std::shared_ptr<Arrivals> told;
  {
    const std::lock_guard<std::mutex> lock(read_mutex_);
    if (cut_.load() || in_index_ == in_.size()) return result;
    std::size_t used = 0;
    if (in_[in_index_].iov_base == nullptr) {
      entries[used++] = {discarded.data(), std::min(discarded.size(), in_[in_index_].iov_len)};
    } else {
      for (std::size_t i = in_index_; i < in_.size() && used < entries.size(); ++i) {
        if (in_[i].iov_base == nullptr) break;
        entries[used++] = in_[i];
      }
    }
    const auto target = std::span(entries).first(used);
    asked = bytesOf(target);
    result = stream_->read(target);
    advanceRead(result.count);
    whole = in_index_ == in_.size();
    left = bytesOf(std::span(in_).subspan(in_index_));
    told = whole ? std::move(arrivals_) : arrivals_;
  }
  counts_->received.fetch_add(result.count, std::memory_order_relaxed);
  if (told != nullptr) tell(*told, entries, result.count);
  if (whole) {
    if (arrival_.exchange(Arrival::kDone) == Arrival::kAwaited) events_.on_arrived();
  } else {
    wakeAt(left);
  }
  return result;
}

// So many bytes have come into the entries, in order.
void BulkConnection::tell(Arrivals& arrivals, std::span<const iovec> entries, std::size_t count) {
  for (std::size_t i = 0; count > 0; ++i) {
    const std::size_t some = std::min(count, entries[i].iov_len);
    arrivals.onBytes(static_cast<const std::byte*>(entries[i].iov_base), some);
    count -= some;
  }
}

void BulkConnection::advanceRead(std::size_t count) {
  while (count > 0) {
    iovec& entry = in_[in_index_];
    const std::size_t some = std::min(count, entry.iov_len);
    if (entry.iov_base != nullptr) entry.iov_base = static_cast<std::byte*>(entry.iov_base) + some;
    entry.iov_len -= some;
    count -= some;
    if (entry.iov_len == 0) ++in_index_;
  }
}

void BulkConnection::writeSome() {
  takePushed();
  std::uint64_t written = 0;
  while (written < kBytesPerTurn) {
    const IoResult result = writeOnce();
    if (result.error == EAGAIN) break;
    if (result.error != 0) return fail(result.error);
    if (result.count == 0) return want(want_read_, false);
    written += result.count;
  }
  want(want_read_, true);
}

void BulkConnection::takePushed() {
  std::vector<OwnedBuffer> pushed;
  Unfilled unfilled;
  {
    const std::lock_guard<std::mutex> lock(push_mutex_);
    wake_posted_ = false;
    pushed.swap(pushed_);
    unfilled = std::exchange(pushed_unfilled_, {});
  }
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (unfilled.filling != nullptr) unfilled_ = std::move(unfilled);
  if (!cut_.load()) std::move(pushed.begin(), pushed.end(), std::back_inserter(out_));
}

// The bytes that may be written.
std::uint64_t BulkConnection::ready() {
  if (unfilled_.filling == nullptr) return Filling::kAll;
  const std::uint64_t filled = unfilled_.filling->filled();
  if (filled == Filling::kAll) {
    unfilled_ = {};
    return Filling::kAll;
  }
  const std::uint64_t there = filled - std::min(filled, unfilled_.before);
  return unfilled_.begin + there - bytes_written_;
}

// A count of 0: nothing is left, or nothing is there.
IoResult BulkConnection::writeOnce() {
  std::vector<OwnedBuffer> done;  // let go of without the lock
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (cut_.load()) return {};
  std::array<iovec, kMaxEntries> entries;
  std::size_t used = 0;
  std::size_t skip = out_offset_;
  std::uint64_t left = ready();
  for (auto buffer = out_.begin(); buffer != out_.end() && used < entries.size() && left > 0;
       ++buffer) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer->size - skip));
    entries[used++] = {buffer->data + skip, size};
    left -= size;
    skip = 0;
  }
  if (used == 0) return {};
  const IoResult result = stream_->write(std::span(entries).first(used), {});
  out_offset_ += result.count;
  while (!out_.empty() && out_offset_ >= out_.front().size) {
    out_offset_ -= out_.front().size;
    done.push_back(std::move(out_.front()));
    out_.pop_front();
  }
  bytes_written_ += result.count;
  unwritten_.fetch_sub(result.count);
  counts_->sent.fetch_add(result.count, std::memory_order_relaxed);
  return result;
}

// As Link::chooseWakeUp.
void BulkConnection::wakeAt(std::uint64_t left) {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left, kWakePiece));
  if (bytes != std::exchange(wake_at_, bytes)) stream_->wakeAt(bytes);
}

void BulkConnection::want(bool readable, bool writable) {
  want_read_ = readable;
  want_write_ = writable;
  if (poll_) poll_->want(readable, writable);
}

void BulkConnection::fail(int error) {
  want(false, false);
  if (!cut_.load() && !std::exchange(broken_, true)) events_.on_broken(error);
}

}  // namespace weft::transport
