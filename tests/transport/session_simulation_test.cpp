// Two sides of a session over simulated streams, in simulated time: one thread, no socket, every
// step chosen by a seed. Streams delay, break in the middle of frames, lose what is on its way, are
// noticed as broken by one side long before the other, or are made for one side only; claims lag
// behind, so that frames come twice; callers write while the loop replaces the stream under them.
// After each schedule everything must have arrived once and in order, and nothing be kept or owed.
//
// WEFT_SIMULATION_SEED=N in the environment runs that schedule alone.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/transport/recorder.h"
#include "transport/channel/outbox.h"
#include "transport/checksum/checked_stream.h"
#include "transport/frame/frame_reader.h"
#include "transport/session/session.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSchedules = 5'000;
#else
constexpr std::uint64_t kSchedules = 100'000;
#endif
constexpr std::uint64_t kQueueLimit = 2000;
constexpr std::size_t kLargest = 700;  // of a message's buffer
constexpr std::size_t kLargestMessage = 1200;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return (*this)() % bound; }
  bool oneIn(std::uint64_t chances) { return below(chances) == 0; }

 private:
  std::uint64_t state_;
};

// One direction of a connection.
struct Pipe {
  std::string bytes;
  std::size_t read = 0;
  std::size_t there = 0;  // of them, those that have arrived
  bool cut = false;       // nothing arrives any more
};

class SimulatedStream : public Stream {
 public:
  SimulatedStream(Random& random, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
      : random_(random), in_(std::move(in)), out_(std::move(out)) {}

  std::function<void()> during_write;

  IoResult write(std::span<iovec> from, std::span<const int>) override {
    if (during_write) std::exchange(during_write, nullptr)();  // as another thread would
    if (broken_) return {0, EPIPE, false};
    if (random_.oneIn(4)) return {0, EAGAIN, false};
    std::size_t allowed = 1 + random_.below(random_.oneIn(2) ? 60 : 5000);
    IoResult result;
    for (const iovec& part : from) {
      const std::size_t some = std::min(allowed, part.iov_len);
      if (!out_->cut) out_->bytes.append(static_cast<const char*>(part.iov_base), some);
      result.count += some;
      allowed -= some;
    }
    return result;
  }
  IoResult read(std::span<iovec> into) override {
    std::size_t left = std::min<std::size_t>(in_->there - in_->read, 1 + random_.below(3000));
    if (left == 0) return broken_ ? IoResult{0, 0, true} : IoResult{0, EAGAIN, false};
    IoResult result;
    for (const iovec& part : into) {
      const std::size_t some = std::min(left, part.iov_len);
      std::memcpy(part.iov_base, in_->bytes.data() + in_->read, some);
      in_->read += some;
      result.count += some;
      left -= some;
    }
    return result;
  }
  void finishWriting() override {}
  void breakOff() override { broken_ = true; }
  int pollFd() const override { return -1; }
  const char* transportName() const override { return "simulated"; }

  // Some of what is on its way arrives; it may stop anywhere, also within a frame's head.
  void arrive() {
    if (in_->cut) return;
    in_->there += random_.below(in_->bytes.size() - in_->there + 1);
  }
  void cut() { in_->cut = out_->cut = true; }
  bool isCut() const { return in_->cut; }

 private:
  Random& random_;
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
  bool broken_ = false;
};

std::pair<std::shared_ptr<SimulatedStream>, std::shared_ptr<SimulatedStream>> connection(
    Random& random) {
  const auto one = std::make_shared<Pipe>();
  const auto other = std::make_shared<Pipe>();
  return {std::make_shared<SimulatedStream>(random, one, other),
          std::make_shared<SimulatedStream>(random, other, one)};
}

// What Channel does for one side, without a loop and a socket.
class Side : private MessageHandler {
 public:
  Side(Random& random, std::uint64_t own, bool checked)
      : random_(random), checked_(checked), session_(own) {
    limits_.max_queued_bytes = kQueueLimit;
    outbox_ = std::make_unique<Outbox>(limits_, session_, "the other side", [] {});
  }

  bool linked() const { return stream_ != nullptr; }
  SimulatedStream* stream() const { return stream_.get(); }
  Session& session() { return session_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t delivered() const { return delivered_; }
  std::uint64_t skipped() const { return skipped_; }
  bool settled() const {
    const OutboxStats stats = outbox_->stats();
    return stats.queued_bytes == 0 && stats.unacked_bytes == 0;
  }

  // What it says to the other side. Frames that it says it lacks come twice.
  SessionClaim claim() {
    SessionClaim claim = session_.claim();
    if (random_.oneIn(3))
      claim.received -= random_.below(std::min<std::uint64_t>(claim.received, 3) + 1);
    return claim;
  }
  void adopt(std::shared_ptr<SimulatedStream> stream, const SessionClaim& theirs) {
    ASSERT_EQ(session_.match(theirs), Session::Match::kSame);
    ASSERT_LE(theirs.received, outbox_->lastSequence());
    session_.beginLink(theirs);
    stream_ = std::move(stream);
    frames_ = stream_;
    if (checked_) frames_ = std::make_shared<CheckedStream>(stream_, CheckedStream::Seeds{});
    reader_ = std::make_unique<FrameReader>(limits_, FrameHandlers{*this}, session_.received());
    outbox_->attach(frames_, theirs.received);
  }
  void lose(Session::Time now) {
    if (!linked()) return;
    stream_->breakOff();
    session_.breakOff(now + std::chrono::hours(1));
    stream_.reset();
    frames_.reset();
    reader_.reset();
    outbox_->detach();
  }

  void send(const std::function<void()>& during_write) {
    Message message;
    const std::uint64_t number = sent_ + 1;
    message.header.resize(8 + random_.below(random_.oneIn(4) ? 300 : 8));
    std::memcpy(message.header.data(), &number, 8);
    if (random_.oneIn(2)) {
      message.buffers.push_back(newBuffer(random_.below(kLargest)));
      std::fill_n(message.buffers[0].data, message.buffers[0].size, std::byte(number));
    }
    const std::shared_ptr<SimulatedStream> stream = stream_;
    if (stream != nullptr) stream->during_write = during_write;
    OutFrame frame = std::move(OutFrame::message(std::move(message), limits_)).value();
    const Error error = outbox_->send(std::move(frame), milliseconds(0));
    if (stream != nullptr) stream->during_write = nullptr;
    // One message may exceed the limit, and one that was half written counts whole again.
    const OutboxStats stats = outbox_->stats();
    ASSERT_LE(stats.queued_bytes + stats.unacked_bytes, kQueueLimit + 2 * kLargestMessage);
    if (!error) {
      ++sent_;
    } else {
      ASSERT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
    }
  }
  void flush() {
    int broken = 0;
    static_cast<void>(outbox_->flush(broken));
  }
  void read() {
    if (stream_ == nullptr) return;
    std::array<iovec, 4> entries;
    const std::size_t used = reader_->prepare(entries);
    const IoResult result = frames_->read(std::span(entries).first(used));
    if (result.error != 0 || result.end) return;
    const Error error = reader_->commit(result.count);
    ASSERT_FALSE(error) << error.text();
    if (session_.ackAsked()) outbox_->control(FrameKind::kAck);
  }
  void tick() {
    outbox_->tidy();
    if (!linked()) return;
    if (session_.ackOverdue()) {
      outbox_->control(FrameKind::kAck);
    } else if (random_.oneIn(4)) {
      outbox_->control(FrameKind::kHeartbeat);
    }
  }

 private:
  Error onFrameHead(const FrameHead& head) override {
    if (head.kind == FrameKind::kData && head.sequence <= session_.received()) ++skipped_;
    if (outbox_->acked(head.ack)) return Error::ok();
    return {ErrorCode::kProtocol, "an ack of what was never sent"};
  }
  void onDataFrame(const FrameHead& head) override {
    session_.took(head.sequence, (head.flags & FrameHead::kAckNow) != 0);
  }
  Result<Disposition> onHeader(std::span<const std::byte>, std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override {
    fillBuffers(sizes, buffers);
    return Disposition::kAccept;
  }
  Error onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) override {
    std::uint64_t number = 0;
    std::memcpy(&number, header.data(), 8);
    EXPECT_EQ(number, delivered_ + 1);  // none lost, none twice, none out of order
    delivered_ = number;
    for (const OwnedBuffer& buffer : buffers) {
      EXPECT_TRUE(std::all_of(buffer.data, buffer.data + buffer.size,
                              [&](std::byte byte) { return byte == std::byte(number); }));
    }
    return Error::ok();
  }

  Random& random_;
  const bool checked_;
  Limits limits_;
  Session session_;
  std::unique_ptr<Outbox> outbox_;
  std::shared_ptr<SimulatedStream> stream_;
  std::shared_ptr<Stream> frames_;  // stream_, or with checksums over it
  std::unique_ptr<FrameReader> reader_;
  std::uint64_t sent_ = 0;
  std::uint64_t delivered_ = 0;
  std::uint64_t skipped_ = 0;
};

struct Totals {
  std::uint64_t delivered = 0;
  std::uint64_t links = 0;
  std::uint64_t duplicates = 0;
};

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed)
      : random_(seed),
        sides_{Side(random_, 2 * seed + 1, seed % 8 == 1),
               Side(random_, 2 * seed + 2, seed % 8 == 1)} {}

  void run(Totals& totals) {
    const std::uint64_t steps = 20 + random_.below(150);
    // Some schedules are quiet, in others hardly a connection lives.
    const std::uint64_t calm = 4 + random_.below(60);
    for (std::uint64_t i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i)
      step(calm);
    settle();
    for (Side& side : sides_) {
      totals.delivered += side.delivered();
      totals.duplicates += side.skipped();
      if (side.session().linkNumber() > 0) totals.links += side.session().linkNumber() - 1;
    }
  }

 private:
  void step(std::uint64_t calm) {
    now_ += milliseconds(random_.below(30));
    if (random_.oneIn(calm)) breakConnection();
    Side& side = sides_[random_.below(2)];
    switch (random_.below(8)) {
      case 0:
      case 1:
        return side.send(random_.oneIn(6) ? [this] { breakUnderACaller(); }
                                          : std::function<void()>());
      case 2:
        return side.flush();
      case 3:
        return side.tick();
      case 4:
      case 5:
        if (side.stream() != nullptr) side.stream()->arrive();
        return side.read();
      case 6:
        // A connection that is dead on the way is noticed by silence, or not for long.
        if (side.stream() != nullptr && side.stream()->isCut()) notice(side);
        return;
      default:
        return connect();
    }
  }

  // What came before the end is read or not, as it happens.
  void notice(Side& side) {
    for (int i = static_cast<int>(random_.below(3)); i > 0; --i)
      side.read();
    side.lose(now_);
  }

  void breakConnection() {
    Side& side = sides_[random_.below(2)];
    if (side.stream() == nullptr) return;
    side.stream()->cut();
    if (random_.oneIn(2)) notice(side);
    if (random_.oneIn(3)) notice(other(side));
  }

  void breakUnderACaller() {
    Side& side = sides_[random_.below(2)];
    notice(side);
    if (random_.oneIn(2)) connect();
  }

  Side& other(Side& side) { return &side == &sides_[0] ? sides_[1] : sides_[0]; }

  // Whoever noticed dials; the other gives its old link up for the new one.
  void connect() {
    Side& dialler = sides_[random_.below(2)];
    Side& acceptor = other(dialler);
    if (dialler.linked()) return;
    const SessionClaim says = dialler.claim();
    if (acceptor.linked()) {
      if (acceptor.session().isLate(says)) return;
      notice(acceptor);
    }
    auto [here, there] = connection(random_);
    const SessionClaim answers = acceptor.claim();
    acceptor.adopt(std::move(there), says);
    if (random_.oneIn(5)) {
      here->cut();  // its last word is lost: the dialler knows of no connection
      here->breakOff();
      return;
    }
    dialler.adopt(std::move(here), answers);
  }

  // From now on nothing breaks: all must come to an end.
  void settle() {
    for (int i = 0; i < 20'000; ++i) {
      for (Side& side : sides_) {
        if (side.stream() != nullptr && side.stream()->isCut()) notice(side);
      }
      if (!sides_[0].linked() || !sides_[1].linked()) {
        notice(sides_[0]);
        notice(sides_[1]);
        connect();
        continue;
      }
      for (Side& side : sides_) {
        side.flush();
        side.stream()->arrive();
        side.read();
        if (i % 8 == 0) side.tick();
      }
      if (sides_[0].settled() && sides_[1].settled()) break;
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(sides_[0].delivered(), sides_[1].sent());
    EXPECT_EQ(sides_[1].delivered(), sides_[0].sent());
    EXPECT_TRUE(sides_[0].settled() && sides_[1].settled());
  }

  Random random_;
  Session::Time now_{};
  std::array<Side, 2> sides_;
};

TEST(SessionSimulation, NothingIsLostDuplicatedReorderedOrStuck) {
  const char* only = std::getenv("WEFT_SIMULATION_SEED");
  const std::uint64_t first =
      only != nullptr ? std::strtoull(only, nullptr, 10) : std::random_device()();
  const std::uint64_t count = only != nullptr ? 1 : kSchedules;
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Schedule(seed).run(totals);
    if (HasFailure()) {
      FAIL() << "seed " << seed << "; WEFT_SIMULATION_SEED=" << seed << " repeats it";
    }
  }
  std::printf(
      "schedules %llu, first seed %llu: %llu messages, %llu connections made again, "
      "%llu duplicates dropped\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(totals.delivered),
      static_cast<unsigned long long>(totals.links),
      static_cast<unsigned long long>(totals.duplicates));
  // The schedules are worth something.
  if (only == nullptr) {
    EXPECT_GT(totals.links, count);
    EXPECT_GT(totals.duplicates, count / 20);
    EXPECT_GT(totals.delivered, count * 5);
  }
}

}  // namespace
}  // namespace weft::transport
