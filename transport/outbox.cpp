#include "transport/outbox.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMaxEntries = 1024;                      // IOV_MAX
constexpr std::uint64_t kLoopBudget = std::uint64_t{4} << 20;  // then others get their turn

}  // namespace

Outbox::Outbox(const Limits& limits, std::string peer, std::function<void()> attention)
    : limits_(limits), peer_(std::move(peer)), attention_(std::move(attention)) {}

Error Outbox::send(OutFrame frame, std::optional<std::chrono::milliseconds> patience) {
  const std::uint64_t size = frame.size();
  std::unique_lock<std::mutex> lock(mutex_);
  // A message that finds the queue empty always goes, however large it is.
  const auto has_room = [&] {
    return mode_ == Mode::kShut || said_goodbye_ || queued_bytes_ == 0 ||
           queued_bytes_ + size <= limits_.max_queued_bytes;
  };
  if (patience && !has_room()) {
    ++waiting_;
    const bool room = room_.wait_for(lock, *patience, has_room);
    --waiting_;
    if (!room) {
      return {ErrorCode::kTimeout, "sending " + std::to_string(size) + " bytes to " + peer_ +
                                       " found no room for " + std::to_string(patience->count()) +
                                       " ms: " + std::to_string(queued_bytes_) +
                                       " bytes are queued to it and it reads too slowly; send less "
                                       "at once, or raise max_queued_bytes"};
    }
  }
  if (mode_ == Mode::kShut) return reason_;
  if (said_goodbye_) {
    return {ErrorCode::kShutdown,
            "nothing can be sent to " + peer_ + " any more: this endpoint said goodbye to it"};
  }
  frame.seal(++last_sequence_, 0);

  if (mode_ != Mode::kUp || writer_ != Writer::kNone || !queue_.empty()) {
    const bool first = mode_ == Mode::kWaiting && queue_.empty();
    queued_bytes_ += size;
    queue_.push_back(std::move(frame));
    lock.unlock();
    if (first) attention_();
    return Error::ok();
  }

  writer_ = Writer::kCaller;
  Stream* const stream = stream_.get();  // shut() waits for this writer before it lets go
  lock.unlock();
  std::uint64_t written = 0;
  int error = 0;
  while (frame.left() > 0) {
    std::array<iovec, kMaxEntries> entries;
    const std::size_t used = frame.gather(entries);
    const IoResult result = stream->write(std::span(entries).first(used));
    error = result.error;
    if (error != 0) break;
    frame.advance(result.count);
    written += result.count;
  }
  lock.lock();
  bytes_sent_ += written;
  if (frame.left() > 0) {
    if (error != EAGAIN) broken_ = error;
    queued_bytes_ += frame.left();
    queue_.push_front(std::move(frame));
  } else {
    ++messages_sent_;
  }
  const bool attention = mode_ == Mode::kShut || !queue_.empty();
  writer_ = mode_ == Mode::kShut || queue_.empty() ? Writer::kNone : Writer::kLoop;
  lock.unlock();
  if (attention) attention_();
  return Error::ok();
}

void Outbox::attach(std::shared_ptr<Stream> stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kWaiting, "one stream in the life of a peer");
  mode_ = Mode::kUp;
  stream_ = std::move(stream);
  if (!queue_.empty()) writer_ = Writer::kLoop;
}

Outbox::Flushed Outbox::flush(int& broken) {
  std::vector<OutFrame> done;  // destroyed after the lock: owners may run anything
  std::unique_lock<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp || writer_ == Writer::kCaller) return Flushed::kBusy;
  if (broken_ != 0) {
    broken = broken_;
    return Flushed::kBroken;
  }
  writer_ = Writer::kLoop;
  std::uint64_t written = 0;
  while (!queue_.empty()) {
    if (written >= kLoopBudget) return Flushed::kBlocked;
    std::array<iovec, kMaxEntries> entries;
    std::size_t used = 0;
    const int fd = queue_.front().fdToSend();
    for (auto frame = queue_.begin(); frame != queue_.end() && used < entries.size(); ++frame) {
      if (used > 0 && frame->fdToSend() >= 0) break;  // it goes with the first byte of a write
      used += frame->gather(std::span(entries).subspan(used));
    }
    lock.unlock();
    const auto from = std::span(entries).first(used);
    const IoResult result = fd >= 0 ? stream_->writeWithFd(from, fd) : stream_->write(from);
    lock.lock();
    if (result.error == EAGAIN) return Flushed::kBlocked;
    if (result.error != 0) {
      broken = broken_ = result.error;
      return Flushed::kBroken;
    }
    written += result.count;
    popWritten(result.count, done);
    if (waiting_ > 0) room_.notify_all();
  }
  writer_ = Writer::kNone;
  return Flushed::kDrained;
}

void Outbox::popWritten(std::uint64_t count, std::vector<OutFrame>& done) {
  bytes_sent_ += count;
  queued_bytes_ -= count;
  while (count > 0) {
    OutFrame& frame = queue_.front();
    const std::uint64_t part = std::min(count, frame.left());
    frame.advance(part);
    count -= part;
    if (frame.left() > 0) return;
    if (frame.kind() == FrameKind::kData) ++messages_sent_;
    done.push_back(std::move(frame));
    queue_.pop_front();
  }
}

bool Outbox::control(OutFrame frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp) return false;
  if (said_goodbye_) return false;
  said_goodbye_ = frame.kind() == FrameKind::kGoodbye;
  if (said_goodbye_) room_.notify_all();
  frame.seal(last_sequence_, 0);
  queued_bytes_ += frame.size();
  queue_.push_back(std::move(frame));
  return true;
}

bool Outbox::shut(const Error& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kShut) {
    mode_ = Mode::kShut;
    reason_ = reason;
    room_.notify_all();
  }
  return writer_ != Writer::kCaller;
}

bool Outbox::writing() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return writer_ == Writer::kCaller;
}

std::vector<OutFrame> Outbox::takeUnsent() {
  std::vector<OutFrame> unsent;
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kShut && writer_ != Writer::kCaller, "nobody writes after shut()");
  unsent.reserve(queue_.size());
  for (OutFrame& frame : queue_) {
    if (frame.kind() == FrameKind::kData) unsent.push_back(std::move(frame));
  }
  queue_.clear();
  queued_bytes_ = 0;
  stream_.reset();
  return unsent;
}

bool Outbox::connectionWanted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mode_ == Mode::kWaiting && !queue_.empty();
}

bool Outbox::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && writer_ != Writer::kCaller;
}

OutboxStats Outbox::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {stream_ != nullptr ? stream_->transportName() : "", bytes_sent_, messages_sent_,
          queued_bytes_};
}

}  // namespace weft::transport
