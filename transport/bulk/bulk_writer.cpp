#include "transport/bulk/bulk_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "transport/io/iovec_cursor.h"

namespace weft::transport {

void BulkWriter::push(std::vector<OwnedBuffer> half, std::shared_ptr<const Filling> filling,
                      std::uint64_t before) {
  std::uint64_t bytes = 0;
  for (const OwnedBuffer& buffer : half)
    bytes += buffer.size;
  const std::lock_guard<std::mutex> lock(push_mutex_);
  pushed_.insert(pushed_.end(), std::make_move_iterator(half.begin()),
                 std::make_move_iterator(half.end()));
  if (filling != nullptr) pushed_unfilled_ = {std::move(filling), before, bytes_pushed_};
  bytes_pushed_ += bytes;
  unwritten_.fetch_add(bytes);
}

bool BulkWriter::noteDue() {
  const std::lock_guard<std::mutex> lock(push_mutex_);
  return !std::exchange(due_, true);
}

void BulkWriter::stop() {
  std::deque<OwnedBuffer> gone;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(write_mutex_);
  stopped_ = true;
  gone.swap(out_);
  unfilled_ = {};
}

// --- the bulk thread ---

int BulkWriter::writeSome() {
  takePushed();
  std::uint64_t written = 0;
  while (written < kBulkBytesPerTurn) {
    const IoResult result = writeOnce();
    if (result.error != 0) return result.error;
    if (result.count == 0) return 0;
    written += result.count;
  }
  return EAGAIN;
}

void BulkWriter::takePushed() {
  std::vector<OwnedBuffer> pushed;
  Unfilled unfilled;
  {
    const std::lock_guard<std::mutex> lock(push_mutex_);
    due_ = false;
    pushed.swap(pushed_);
    unfilled = std::exchange(pushed_unfilled_, {});
  }
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (unfilled.filling != nullptr) unfilled_ = std::move(unfilled);
  if (!stopped_) std::move(pushed.begin(), pushed.end(), std::back_inserter(out_));
}

// The bytes that may be written.
std::uint64_t BulkWriter::ready() {
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
IoResult BulkWriter::writeOnce() {
  std::vector<OwnedBuffer> done;  // let go of without the lock
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (stopped_) return {};
  std::array<iovec, IovecCursor::kMaxEntries> entries;
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
  const IoResult result = stream_.write(std::span(entries).first(used), {});
  out_offset_ += result.count;
  while (!out_.empty() && out_offset_ >= out_.front().size) {
    out_offset_ -= out_.front().size;
    done.push_back(std::move(out_.front()));
    out_.pop_front();
  }
  bytes_written_ += result.count;
  unwritten_.fetch_sub(result.count);
  sent_.fetch_add(result.count, std::memory_order_relaxed);
  return result;
}

}  // namespace weft::transport
