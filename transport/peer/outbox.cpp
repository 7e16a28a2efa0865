#include "transport/peer/outbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kMaxEntries = 1024;                      // IOV_MAX
constexpr std::uint64_t kLoopBudget = std::uint64_t{4} << 20;  // then others get their turn
constexpr std::uint64_t kLeastToSplit = 2 * kLaneUnit;
constexpr std::size_t kMaxAcked = 64;  // beyond, the loop lets go of messages itself

}  // namespace

Outbox::Outbox(const Limits& limits, std::string peer, std::function<void()> onWorkAvailable,
               bool replay)
    : limits_(limits),
      peer_(std::move(peer)),
      on_work_available_(std::move(onWorkAvailable)),
      replay_(replay),
      may_export_(replay),
      requests_(limits.max_queued_bytes) {}

// A message that finds the queue empty goes, however large it is. What waits for its ack is no
// hindrance to a very large one as long as it is too little for its ack to be asked for.
bool Outbox::hasRoom(std::uint64_t size) const noexcept {
  if (mode_ == Mode::kShut || said_goodbye_) return true;
  const std::uint64_t limit = limits_.max_queued_bytes;
  const std::uint64_t held = queued_bytes_ + unacked_.bytes();
  if (held == 0 || held + size <= limit) return true;
  return queued_bytes_ == 0 && size > limit - limit / 8 && held <= limit / 8;
}

Error Outbox::refusal() const {
  if (mode_ == Mode::kShut) return reason_;
  if (!said_goodbye_) return Error::ok();
  return {ErrorCode::kShutdown,
          "nothing can be sent to " + peer_ + " any more: this endpoint said goodbye to it"};
}

std::shared_ptr<BulkConnection> Outbox::number(OutFrame& frame) {
  const bool data = frame.kind() == FrameKind::kData;
  if (data) {
    ++last_sequence_;
    if (inline_only_) frame.bringInline(OutFrame::Inline::kAll);
  }
  const std::uint64_t ack = received_.load(std::memory_order_relaxed);
  last_ack_sent_.store(ack, std::memory_order_relaxed);
  const bool due = data && replay_ && requests_.due(frame.size());
  const bool ask = due || (data && replay_ && frame.wantedBack() && frame.ownsBuffers());
  std::uint16_t flags = ask ? FrameHead::kAckNow : 0;
  // In the order of the numbers: the bulk connection's bytes do not say whose they are.
  const bool split = data && bulk_ != nullptr && frame.carried() >= lane_threshold_;
  if (split) {
    flags |= FrameHead::kSplit;
    bulk_->push(frame.split());
  }
  frame.seal(last_sequence_, ack, flags);
  return split ? bulk_ : nullptr;
}

void Outbox::setBulkConnection(std::shared_ptr<BulkConnection> bulk, std::uint64_t threshold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp || next_) return;
  bulk_ = std::move(bulk);
  lane_threshold_ = std::max(threshold, kLeastToSplit);
}

Error Outbox::send(OutFrame frame, std::optional<std::chrono::milliseconds> patience) {
  std::array<OutFrame, 2> gone;  // acknowledged; more than come back for each that goes
  std::unique_lock<std::mutex> lock(mutex_);
  if (patience && !hasRoom(frame.size())) {
    ++waiting_;
    const bool room = patience->count() > 0 &&
                      room_.wait_for(lock, *patience, [&] { return hasRoom(frame.size()); });
    --waiting_;
    if (!room) {
      return {ErrorCode::kTimeout, "sending " + std::to_string(frame.size()) + " bytes to " +
                                       peer_ + " found no room for " +
                                       std::to_string(patience->count()) +
                                       " ms: " + std::to_string(queued_bytes_ + unacked_.bytes()) +
                                       " bytes are queued to it and it reads too slowly; send less "
                                       "at once, or raise max_queued_bytes"};
    }
  }
  if (Error error = refusal()) return error;
  const std::shared_ptr<BulkConnection> bulk = number(frame);
  // Only a thread that brings buffers of its own: others may hold locks that what these run asks
  // for.
  if (patience && frame.ownsBuffers()) {
    for (std::size_t i = 0; i < gone.size() && !acked_.empty(); ++i) {
      gone[i] = std::move(acked_.back());
      acked_.pop_back();
    }
  }

  if (mode_ != Mode::kUp || writer_ != Writer::kNone || !queue_.empty()) {
    const bool first = mode_ == Mode::kWaiting && queue_.empty();
    queued_bytes_ += unwritten(frame);
    queue_.push_back(std::move(frame));
    lock.unlock();
    if (bulk != nullptr) bulk->wake();
    if (first) on_work_available_();
    return Error::ok();
  }

  writer_ = Writer::kCaller;
  Stream* const stream = stream_.get();  // kept until this writer has finished
  const std::uint32_t link = link_;
  lock.unlock();
  if (bulk != nullptr) bulk->wake();
  std::uint64_t written = 0;
  int error = 0;
  while (frame.left() > 0) {
    std::array<iovec, kMaxEntries> entries;
    const std::size_t used = frame.gather(entries);
    const auto from = std::span(entries).first(used);
    const auto fds = frame.fdsToSend();
    const IoResult result = fds.empty() ? stream->write(from) : stream->writeWithFds(from, fds);
    error = result.error;
    if (error != 0) break;
    frame.advance(result.count);
    written += result.count;
  }
  lock.lock();
  afterCaller(frame, written, error, link);
  const bool onWorkAvailable = writer_ == Writer::kLoop || mode_ != Mode::kUp;
  lock.unlock();
  if (onWorkAvailable) on_work_available_();
  return Error::ok();
}

void Outbox::afterCaller(OutFrame& frame, std::uint64_t written, int error, std::uint32_t link) {
  bytes_sent_ += written;
  if (link != link_) {
    // The stream broke meanwhile: this message is among those that wait for another.
    requeue(std::move(frame));
  } else if (frame.left() > 0) {
    // The loop waits, and tries again.
    if (error != EAGAIN && error != ETOOMANYREFS) broken_ = error;
    queued_bytes_ += unwritten(frame);
    queue_.push_front(std::move(frame));
  } else {
    count(frame);
    if (mustKeep(frame)) {
      // For copies only: a half that is still with the bulk connection has its owners there.
      std::shared_ptr<void> last = frame.takeUntilWritten();
      unacked_.push(std::move(frame));
      frame = OutFrame::holding(std::move(last));
    }
  }
  writer_ = mode_ != Mode::kUp || queue_.empty() ? Writer::kNone : Writer::kLoop;
}

void Outbox::count(const OutFrame& frame) {
  if (frame.sequence() <= counted_) return;  // it went before, over another stream
  counted_ = frame.sequence();
  ++messages_sent_;
}

// In its place among those that were queued behind it.
void Outbox::requeue(OutFrame frame) {
  rewind(frame);
  queued_bytes_ += frame.size();
  const auto place = std::find_if(queue_.begin(), queue_.end(), [&](const OutFrame& other) {
    return other.sequence() >= frame.sequence();
  });
  queue_.insert(place, std::move(frame));
}

// For another stream. Descriptors go over the one for which they were meant only: the peer may have
// had no room for them.
void Outbox::rewind(OutFrame& frame) {
  frame.rewind();
  if (frame.bringInline(OutFrame::Inline::kExported))
    may_export_.store(false, std::memory_order_relaxed);
}

void Outbox::attach(std::shared_ptr<Stream> stream, std::uint64_t received) {
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kWaiting && !next_, "one stream at a time");
  next_ = {std::move(stream), received};
  if (writer_ != Writer::kCaller) attachNow();
}

void Outbox::attachNow() {
  const std::uint64_t received = next_->received;
  mode_ = Mode::kUp;
  stream_ = std::move(next_->stream);
  next_.reset();
  acknowledged_ = std::max(acknowledged_, received);
  inline_only_ = std::string_view(stream_->transportName()) == "tcp";
  while (!queue_.empty() && queue_.front().kind() == FrameKind::kData &&
         queue_.front().sequence() <= received) {
    queued_bytes_ -= queue_.front().size();
    count(queue_.front());
    release(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (inline_only_) {
    queued_bytes_ = 0;
    for (OutFrame& frame : queue_) {
      frame.bringInline(OutFrame::Inline::kAll);
      queued_bytes_ += frame.size();
    }
  }
  if (!queue_.empty()) writer_ = Writer::kLoop;
  if (waiting_ > 0) room_.notify_all();
}

void Outbox::detach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++link_;
  next_.reset();
  bulk_.reset();
  if (mode_ == Mode::kShut) return;
  mode_ = Mode::kWaiting;
  broken_ = 0;
  if (writer_ == Writer::kLoop) writer_ = Writer::kNone;
  // What was said about the former stream is void.
  std::erase_if(queue_, [](const OutFrame& frame) { return frame.kind() != FrameKind::kData; });
  while (!unacked_.empty())
    queue_.push_front(unacked_.popNewest());
  queued_bytes_ = 0;
  for (OutFrame& frame : queue_) {
    rewind(frame);
    queued_bytes_ += frame.size();
  }
}

Outbox::Flushed Outbox::flush(int& broken) {
  std::vector<OutFrame> done;  // these are destroyed after the lock: owners may run anything
  std::vector<OutFrame> wanted;
  Gone written_whole;
  std::unique_lock<std::mutex> lock(mutex_);
  if (next_ && writer_ != Writer::kCaller) attachNow();
  wanted.swap(wanted_);
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
    const auto fds = queue_.front().fdsToSend();
    for (auto frame = queue_.begin(); frame != queue_.end() && used < entries.size(); ++frame) {
      if (used > 0 && !frame->fdsToSend().empty()) break;  // it goes with the first byte of a write
      used += frame->gather(std::span(entries).subspan(used));
    }
    lock.unlock();
    const auto from = std::span(entries).first(used);
    const IoResult result = fds.empty() ? stream_->write(from) : stream_->writeWithFds(from, fds);
    lock.lock();
    if (result.error == EAGAIN) return Flushed::kBlocked;
    if (result.error == ETOOMANYREFS) return Flushed::kCrowded;
    if (result.error != 0) {
      broken = broken_ = result.error;
      return Flushed::kBroken;
    }
    written += result.count;
    popWritten(result.count, done, written_whole);
    if (waiting_ > 0) room_.notify_all();
  }
  writer_ = Writer::kNone;
  return Flushed::kDrained;
}

void Outbox::popWritten(std::uint64_t count, std::vector<OutFrame>& done, Gone& written) {
  bytes_sent_ += count;
  queued_bytes_ -= count;
  while (count > 0) {
    OutFrame& frame = queue_.front();
    const std::uint64_t part = std::min(count, frame.left());
    frame.advance(part);
    count -= part;
    if (frame.left() > 0) return;
    queued_bytes_ -= frame.laneBytes();
    const bool data = frame.kind() == FrameKind::kData;
    if (data) this->count(frame);
    if (data && mustKeep(frame)) {
      if (auto last = frame.takeUntilWritten()) written.push_back(std::move(last));
      unacked_.push(std::move(frame));
    } else {
      done.push_back(std::move(frame));
    }
    queue_.pop_front();
  }
}

bool Outbox::control(OutFrame frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kUp && !next_) return false;
  if (mode_ == Mode::kShut || said_goodbye_) return false;
  said_goodbye_ = frame.kind() == FrameKind::kGoodbye;
  if (said_goodbye_) room_.notify_all();
  number(frame);
  queued_bytes_ += frame.size();
  queue_.push_back(std::move(frame));
  return true;
}

bool Outbox::acked(std::uint64_t sequence) {
  std::vector<OutFrame> gone;  // destroyed after the lock
  std::vector<OutFrame> wanted;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sequence > last_sequence_) return false;
  acknowledged_ = std::max(acknowledged_, sequence);
  while (!unacked_.empty() && unacked_.oldest().sequence() <= sequence)
    release(unacked_.popOldest());
  if (acked_.size() > kMaxAcked) gone.swap(acked_);
  wanted.swap(wanted_);
  if (waiting_ > 0) room_.notify_all();
  return true;
}

// Freeing what an application made may take long, and locks of its own: better a thread that sends
// than the loop. What is only ours goes at once, and so does what its sender waits for.
void Outbox::release(OutFrame frame) {
  if (frame.ownsBuffers()) (frame.wantedBack() ? wanted_ : acked_).push_back(std::move(frame));
}

std::uint64_t Outbox::lastSequence() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_sequence_;
}

void Outbox::tidy() {
  std::vector<OutFrame> gone;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  gone.swap(acked_);
}

bool Outbox::shut(const Error& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kShut) {
    mode_ = Mode::kShut;
    reason_ = reason;
    next_.reset();
    room_.notify_all();
  }
  return writer_ != Writer::kCaller;
}

bool Outbox::writing() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return writer_ == Writer::kCaller;
}

std::vector<OutFrame> Outbox::takeUnsent() {
  ReplayBuffer written;
  std::vector<OutFrame> gone;
  std::vector<OutFrame> wanted;
  std::vector<OutFrame> unsent;
  const std::lock_guard<std::mutex> lock(mutex_);
  WEFT_CHECK(mode_ == Mode::kShut && writer_ != Writer::kCaller, "nobody writes after shut()");
  unsent.reserve(queue_.size());
  for (OutFrame& frame : queue_) {
    if (frame.kind() == FrameKind::kData) unsent.push_back(std::move(frame));
  }
  queue_.clear();
  queued_bytes_ = 0;
  std::swap(written, unacked_);
  gone.swap(acked_);
  wanted.swap(wanted_);
  stream_.reset();
  bulk_.reset();
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
          queued_bytes_, unacked_.bytes()};
}

}  // namespace weft::transport
