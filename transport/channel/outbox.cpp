#include "transport/channel/outbox.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/base/check.h"
#include "transport/base/thrown.h"
#include "transport/channel/caller_write.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kLoopBudget = std::uint64_t{4} << 20;  // then other peers get their turn

}  // namespace

Outbox::Outbox(const Limits& limits, Session& session, std::string peer,
               std::function<void()> on_work_available, bool replay)
    : peer_(std::move(peer)),
      on_work_available_(std::move(on_work_available)),
      may_export_(replay),
      queue_(replay),
      limit_(limits, queue_, peer_),
      order_(session, limits.max_queued_bytes, replay) {}

void Outbox::setBulkConnection(std::shared_ptr<BulkConnection> bulk, std::uint64_t threshold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ == Mode::kUp) order_.setBulkConnection(std::move(bulk), threshold);
}

// Waits until there is room for the frame, and until another thread can write it without waiting
// for its bytes, unless this one may write it.
Error Outbox::awaitTurn(std::unique_lock<std::mutex>& lock, OutFrame& frame,
                        std::optional<std::chrono::milliseconds> patience) {
  std::optional<Deadline> until;
  while (true) {
    if (patience) {
      if (Error error = limit_.await(lock, frame.size(), *patience, until)) return error;
    }
    if (mayWrite() || frame.filling() == nullptr) return Error::ok();
    lock.unlock();
    awaitAllBytes(frame, nullptr);
    lock.lock();
  }
}

Error Outbox::send(OutFrame content, std::optional<std::chrono::milliseconds> patience) {
  FrameQueue::Frames released;  // destroyed after the lock
  FrameQueue::Frames one;
  OutFrame& frame = one.emplace_back(std::move(content));
  std::unique_lock<std::mutex> lock(mutex_);
  if (Error error = awaitTurn(lock, frame, patience)) return error;
  if (reason_) return reason_;
  if (!patience && limit_.isOverrun(frame)) return limit_.overrun();
  const std::shared_ptr<BulkConnection> bulk = order_.take(frame);
  // A thread that sends buffers may destroy those of others, because it holds no lock that their
  // destructors need.
  // Two at a time are more than are acknowledged for each message that is sent.
  if (patience && frame.ownsBuffers()) released = queue_.takeAcknowledged(2);

  if (!mayWrite()) {
    const bool first = mode_ == Mode::kWaiting && queue_.empty();
    queue_.push(std::move(one));
    lock.unlock();
    if (bulk != nullptr) bulk->wake();
    if (first) on_work_available_();
    return Error::ok();
  }

  writer_ = Writer::kCaller;
  const std::shared_ptr<Stream> stream = stream_;  // another may take its place meanwhile
  lock.unlock();
  if (bulk != nullptr) bulk->wake();
  const std::uint64_t written = writeNow(frame, *stream, bulk.get());
  lock.lock();
  bytes_sent_ += written;
  const std::shared_ptr<void> last = afterCaller(one, *stream);
  const bool loop_needed = writer_ == Writer::kLoop || mode_ != Mode::kUp;
  lock.unlock();
  if (loop_needed) on_work_available_();
  return Error::ok();
}

std::shared_ptr<void> Outbox::afterCaller(FrameQueue::Frames& one, const Stream& stream) {
  const OutFrame& frame = one.front();
  const bool broke = stream_.get() != &stream;
  std::shared_ptr<void> last;
  if (broke && !queue_.isAcknowledged(frame)) {
    // The stream broke meanwhile: this message goes back among those for the next stream.
    using Inline = OutFrame::Inline;
    if (queue_.requeue(std::move(one), order_.inlineOnly() ? Inline::kAll : Inline::kExported))
      stopExporting();
  } else if (!broke && frame.left() > 0) {
    queue_.pushFront(std::move(one));
  } else {
    last = queue_.writtenWhole(one);
  }
  writer_ = mode_ != Mode::kUp || queue_.empty() ? Writer::kNone : Writer::kLoop;
  return last;
}

void Outbox::attach(std::shared_ptr<Stream> stream, std::uint64_t received) {
  FrameQueue::Frames released;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kWaiting, "one stream at a time");
  mode_ = Mode::kUp;
  stream_ = std::move(stream);
  queue_.skipReceived(received);
  if (queue_.releaseNow()) released = queue_.takeAcknowledged();
  order_.attach(*stream_);
  if (order_.inlineOnly()) queue_.bringInline(OutFrame::Inline::kAll);
  // A caller that still writes to the former stream comes first.
  if (writer_ != Writer::kCaller && !queue_.empty()) writer_ = Writer::kLoop;
  limit_.notify();
}

void Outbox::detach() {
  std::shared_ptr<Stream> gone;  // closed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  gone = std::move(stream_);
  order_.detach();
  if (mode_ == Mode::kShut) return;
  mode_ = Mode::kWaiting;
  if (writer_ == Writer::kLoop) writer_ = Writer::kNone;
  queue_.rewind();
  // The peer may be unable to map what it was sent.
  if (queue_.bringInline(OutFrame::Inline::kExported)) stopExporting();
}

Outbox::Flushed Outbox::flush(int& error) {
  Flushed flushed = Flushed::kBroken;
  error = ENOMEM;
  // What was written is unknown then: the next stream gets it again.
  static_cast<void>(thrownBy([&] { flushed = flushSome(error); }));
  return flushed;
}

Outbox::Flushed Outbox::flushSome(int& error) {
  FrameQueue::Released released;  // destroyed after the lock
  std::unique_lock<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp || writer_ == Writer::kCaller) return Flushed::kBusy;
  writer_ = Writer::kLoop;
  std::uint64_t written = 0;
  while (!queue_.empty()) {
    if (written >= kLoopBudget) return Flushed::kBlocked;
    std::array<iovec, kIovMax> entries;
    const FrameQueue::Gathered next = queue_.gather(entries);
    lock.unlock();
    const IoResult result = stream_->write(std::span(entries).first(next.entries), next.fds);
    lock.lock();
    if (result.error == EAGAIN) return Flushed::kBlocked;
    if (result.error == ETOOMANYREFS) return Flushed::kBackpressured;
    if (result.error != 0) {
      error = result.error;
      return Flushed::kBroken;
    }
    written += result.count;
    bytes_sent_ += result.count;
    queue_.written(result.count, released);
    limit_.notify();
  }
  writer_ = Writer::kNone;
  return Flushed::kDrained;
}

bool Outbox::control(OutFrame content) {
  FrameQueue::Frames one;
  OutFrame& frame = one.emplace_back(std::move(content));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp || reason_ || limit_.isOverrun(frame)) return false;
  if (frame.kind() == FrameKind::kGoodbye) {
    reason_ = {ErrorCode::kShutdown,
               "nothing can be sent to " + peer_ + " any more: this endpoint said goodbye to it"};
    limit_.lift();
  }
  order_.take(frame);
  queue_.push(std::move(one));
  return true;
}

bool Outbox::acked(std::uint64_t sequence) {
  FrameQueue::Frames released;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sequence > order_.last()) return false;
  queue_.acknowledge(sequence);
  if (queue_.releaseNow()) released = queue_.takeAcknowledged();
  limit_.notify();
  return true;
}

std::uint64_t Outbox::lastSequence() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return order_.last();
}

void Outbox::tidy() {
  FrameQueue::Frames released;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  released = queue_.takeAcknowledged();
}

void Outbox::shut(const Error& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mode_ = Mode::kShut;
  reason_ = reason;
  limit_.lift();
}

std::optional<FrameQueue::Frames> Outbox::takeUnsent() {
  FrameQueue::Released released;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kShut, "nothing is sent any more");
  if (writer_ == Writer::kCaller) return std::nullopt;
  stream_.reset();
  order_.detach();
  return queue_.takeUnsent(released);
}

bool Outbox::connectionWanted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mode_ == Mode::kWaiting && !queue_.empty();
}

OutboxStats Outbox::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {stream_ != nullptr ? stream_->transportName() : "", bytes_sent_, queue_.messagesSent(),
          queue_.unwrittenBytes(), queue_.unackedBytes()};
}

}  // namespace weft::transport
