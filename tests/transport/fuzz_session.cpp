// libFuzzer: authenticated peers that say anything in any order to a whole endpoint, from its
// admission to its frames, without sockets. They connect, again and twice, with any claim of the
// session, under any name and life; send frames with any numbers, acks, flags, offers of memory and
// descriptors, cut anywhere; break off. Meanwhile the application sends, time passes, and peers are
// added, removed and lost. Each message arrives whole or not at all, each peer is lost once, and at
// the end nothing is left.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/support/fuzz_input.h"
#include "tests/transport/fuzz_steps.h"
#include "transport/arena/shared_arena.h"
#include "transport/base/log.h"
#include "transport/frame/frame.h"
#include "transport/peer/admission.h"
#include "transport/peer/peer_table.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using Bytes = std::vector<std::byte>;
using std::chrono::milliseconds;

constexpr int kSteps = 64;
constexpr std::int32_t kSelf = 1;

// Memory that peers offer, made once: an arena, exported memory, and what is neither.
struct Memory {
  std::shared_ptr<SharedArena> arena = SharedArena::create(std::uint64_t{2} << 20, 8).value();
  UniqueFd exported{::memfd_create("fuzz", MFD_ALLOW_SEALING)};
  UniqueFd unsealed{::memfd_create("fuzz", 0)};
  UniqueFd no_memory{::eventfd(0, 0)};
  Memory() {
    require(::ftruncate(exported.get(), 1 << 17) == 0 && ::ftruncate(unsealed.get(), 1 << 17) == 0);
    require(::fcntl(exported.get(), F_ADD_SEALS,
                    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) == 0);
  }
  ArenaSlot& slot(std::uint32_t index) { return arenaSlot(arena->bytes({}), index); }
  int fd(std::size_t which) const {
    const std::array<int, 4> all{arena->fd(), exported.get(), unsealed.get(), no_memory.get()};
    return all[which % all.size()];
  }
};
Memory& memory() {
  static Memory one;
  return one;
}

// A connection whose other end is the input.
class ScriptedStream final : public Stream {
 public:
  explicit ScriptedStream(bool is_unix)
      : name_(is_unix ? "unix" : "tcp"), ready_(::eventfd(1, EFD_NONBLOCK)) {}

  IoResult read(std::span<iovec> into) override {
    if (broken || (at_ == bytes.size() && error != 0))
      return {0, broken ? ECONNRESET : error, false};
    IoResult result;
    for (const iovec& part : into) {
      const std::size_t some = std::min(bytes.size() - at_, part.iov_len);
      if (some == 0) continue;
      std::memcpy(part.iov_base, bytes.data() + at_, some);
      at_ += some;
      result.count += some;
    }
    if (result.count == 0) (ended ? result.end = true : (result.error = EAGAIN) != 0);
    return result;
  }
  IoResult write(std::span<iovec> from, std::span<const int>) override {
    if (broken) return {0, EPIPE, false};
    if (room == 0) return {0, EAGAIN, false};
    const std::size_t some = std::min<std::size_t>(room, bytesOf(from));
    room -= some;
    return {some, 0, false};
  }
  void finishWriting() override {}
  void breakOff() override { broken = true; }
  int pollFd() const override { return ready_.get(); }
  ReceivedFd takeFd() override {
    if (lost_fds > 0 && fds.empty()) return --lost_fds, ReceivedFd{{}, true};
    if (fds.empty()) return {};
    ReceivedFd taken{UniqueFd(::dup(fds.back())), false};
    fds.pop_back();
    return taken;
  }
  const char* transportName() const override { return name_; }

  Bytes bytes;
  std::vector<int> fds;
  int lost_fds = 0;
  bool ended = false;
  int error = 0;
  std::size_t room = 1 << 20;
  bool broken = false;

 private:
  const char* const name_;
  const UniqueFd ready_;
  std::size_t at_ = 0;
};

class Application final : public EndpointHandler {
 public:
  struct Thrown : std::runtime_error {
    Thrown() : std::runtime_error("thrown by the application") {}
  };

  Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                       std::span<const std::uint64_t> sizes,
                       std::vector<OwnedBuffer>& buffers) override {
    const int choice = header.empty() ? 0 : static_cast<int>(header[0]) % 16;
    if (choice == 1) return Disposition::kRefuse;
    if (choice == 2) return Disposition::kDiscard;
    if (choice == 3) throw Thrown();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (buffers[i].owner == nullptr) {
        const std::shared_ptr<std::byte[]> own(new std::byte[sizes[i]]);
        buffers[i] = {own.get(), sizes[i], own};
      }
      require(buffers[i].size >= sizes[i]);
    }
    expected_[from] = sizes.size();
    return Disposition::kAccept;
  }
  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<OwnedBuffer> buffers) override {
    const auto expected = expected_.extract(from);
    require(!expected.empty() && expected.mapped() == buffers.size());
    for (const OwnedBuffer& buffer : buffers) {
      for (std::size_t i = 0; i < buffer.size; i += 64)
        touched += static_cast<unsigned>(buffer.data[i]);
    }
    if (!header.empty() && static_cast<int>(header[0]) % 16 == 4) throw Thrown();
    if (!header.empty() && static_cast<int>(header[0]) % 16 == 5) kept = std::move(buffers);
  }
  void onPeerLost(const PeerLoss& loss) override {
    require(loss.reason.code() != ErrorCode::kOk && --lives[loss.rank] >= 0);
  }

  std::map<std::int32_t, int> lives;  // peers made and not yet lost
  std::vector<OwnedBuffer> kept;
  unsigned touched = 0;

 private:
  std::map<std::int32_t, std::size_t> expected_;
};

EndpointOptions optionsOf(FuzzInput& input) {
  EndpointOptions options;
  options.rank = kSelf;
  options.name = "worker1";
  const auto bits = input.number();
  options.accept_unknown_peers = (bits & 1) != 0;
  options.reunite = (bits & 4) != 0;
  options.arena.enabled = (bits & 8) == 0;
  options.limits.skip_too_large = (bits & 16) != 0;
  options.reconnect_timeout = (bits & 32) != 0 ? milliseconds(0) : milliseconds(5000);
  options.bulk.enabled = (bits & 64) == 0;
  options.limits.max_header_bytes = 4096;
  options.limits.max_buffers = 64;
  options.limits.max_message_bytes = 1 << 18;
  options.limits.max_queued_bytes = 1 << 14;
  return options;
}

// One run: an endpoint's parts, and what the peers do to it. The loop thread.
class Run {
 public:
  Run(EventLoop& loop, const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        options_(optionsOf(input_)),
        context_{loop, options_, self_, "host", application_, sessions_, bulk_loop_, spare_},
        peers_([this](const PeerInfo& info) {
          auto peer = std::make_shared<Peer>(context_, info, [this] { peers_.dropFinished(); });
          ++application_.lives[info.rank];
          made_.push_back(peer);
          return peer;
        }),
        admission_(context_, peers_, [](std::int32_t) {}) {
    for (std::uint32_t i = 0; i < 8; ++i)
      memory().slot(i).store(kSlotOffered);
  }

  // False: it is over, and this may go.
  bool step() {
    if (goesOn()) {
      // The loop has its turn after one step in four: what is between comes to it at once.
      for (bool turn = false; !turn && goesOn(); ++steps_) {
        const std::uint8_t what = input_.number();
        act(what % 16);
        turn = what / 16 % 4 == 0;
      }
      return true;
    }
    if (!closing_) close();
    if (!peers_.allFinished()) return true;
    peers_.remove(0);
    peers_.remove(2);
    peers_.dropFinished();
    // What was posted for a peer may still be waiting.
    return std::any_of(made_.begin(), made_.end(),
                       [](const auto& peer) { return !peer.expired(); });
  }

 private:
  bool goesOn() const { return !input_.empty() && steps_ < kSteps; }
  std::int32_t rank() { return input_.oneIn(8) ? 2 : 0; }

  void act(int what) {
    switch (what) {
      case 0:
      case 1:
        return connect();
      case 2:
        return add();
      case 3:
        return send();
      case 4:
        return pass();
      case 5:
        return end();
      case 6:
        return leave();
      case 7:
        memory().slot(static_cast<std::uint32_t>(input_.below(8))).store(input_.number() % 4);
        return;
      case 8: {
        if (ScriptedStream* to = stream()) to->room = input_.number<std::uint16_t>();
        return;
      }
      case 9: {
        if (ScriptedStream* to = stream()) addRaw(*to);
        return;
      }
      default:
        if (ScriptedStream* to = stream()) addFrame(*to);
    }
  }

  // The one a peer speaks over: nearly always its newest.
  ScriptedStream* stream() {
    if (streams_.empty()) return nullptr;
    const std::size_t back = input_.oneIn(16) ? input_.below(streams_.size()) : 0;
    return streams_[streams_.size() - 1 - back].get();
  }

  void connect() {
    AuthenticatedPeer who;
    who.hello.rank = rank();
    who.hello.name = input_.oneIn(16) ? "another" : "worker" + std::to_string(who.hello.rank);
    who.hello.incarnation = input_.oneIn(8) ? 8 : 7;
    const auto& known = known_[who.hello.rank];
    who.claim.own = input_.oneIn(8) ? input_.below(3) + 1 : 1;
    who.claim.peer = input_.oneIn(8) ? input_.below(3) : known.own;
    who.claim.received = input_.oneIn(4) ? input_.below(4) : 0;
    who.claim.link = input_.oneIn(4) ? input_.number<std::uint32_t>() : known.link + 1;
    who.claim.bulk = input_.oneIn(16) ? 1 : 0;
    SessionClaim ours;
    if (admission_.admit(who.hello, who.claim, ours) != RefusalCode::kNone) return;
    known_[who.hello.rank] = ours;
    known_[who.hello.rank].link = who.claim.link;
    const auto stream = std::make_shared<ScriptedStream>(input_.oneIn(2));
    // The other loop reads it: nothing comes after this.
    if (who.claim.bulk != 0) {
      stream->bytes.resize(input_.number<std::uint16_t>());
      stream->ended = input_.oneIn(2);
    } else {
      streams_.push_back(stream);
    }
    who.stream = stream;
    admission_.onHandshakeDone(std::move(who));
  }

  void add() {
    const std::int32_t who = rank();
    const auto added = peers_.add({who, "worker" + std::to_string(who), ""});
    if (added.ok() && added.value().is_new) admission_.connectPending(added.value().peer);
  }

  void send() {
    const auto peer = peers_.find(rank());
    if (peer == nullptr) return;
    const std::size_t size = input_.number<std::uint16_t>();
    const std::shared_ptr<std::byte[]> own(new std::byte[size]());
    Message message{Bytes(input_.below(32)), {{own.get(), size, own}}};
    if (!peer->send(std::move(message), milliseconds(0))) ++sent_;
  }

  void pass() {
    now_ += milliseconds(std::uint32_t{1} << input_.below(15));
    for (const auto& peer : peers_.all())
      peer->tick(now_, milliseconds(0));
    admission_.tick(now_);
  }

  void end() {
    ScriptedStream* to = stream();
    if (to == nullptr) return;
    to->ended = true;
    if (input_.oneIn(2)) to->error = input_.oneIn(4) ? EBADMSG : ECONNRESET;
  }

  void leave() {
    const std::int32_t who = rank();
    const auto peer = peers_.find(who);
    if (peer == nullptr) return;
    switch (input_.below(3)) {
      case 0:
        peers_.remove(who);
        return peer->closeGracefully();
      case 1:
        return peer->fail({ErrorCode::kPeerLost, "given up"});
      default:
        return peer->closeGracefully();
    }
  }

  void addRaw(ScriptedStream& to) {
    const auto some = input_.bytes(input_.number());
    to.bytes.insert(to.bytes.end(), some.begin(), some.end());
  }

  // A descriptor of a block: in the arena, or in exported memory.
  ArenaDescriptor descriptor() {
    ArenaDescriptor where;
    where.slot = static_cast<std::uint32_t>(input_.below(4));
    where.offset = input_.oneIn(2) ? kArenaDataOffset : 0;
    if (input_.oneIn(8)) where.offset += input_.number<std::uint32_t>();
    where.reserved = input_.oneIn(32) ? 1 : 0;
    return where;
  }

  void addFrame(ScriptedStream& to) {
    FrameHead head;
    head.kind = input_.oneIn(2) ? FrameKind::kData : static_cast<FrameKind>(input_.below(9));
    head.flags = input_.oneIn(4) ? static_cast<std::uint16_t>(input_.below(4)) : 0;
    if (head.kind == FrameKind::kData && !input_.oneIn(8)) ++next_;
    head.sequence = input_.oneIn(8) ? input_.number<std::uint64_t>() : next_;
    head.ack = input_.oneIn(4) ? input_.below(8) : input_.oneIn(16) ? sent_ + 1 : sent_;
    Bytes body;
    if (head.kind == FrameKind::kData) body = dataBody(head, to);
    if (head.kind == FrameKind::kArenaOffer) body = offerBody(head, to);
    Bytes frame(FrameHead::kBytes);
    encodeFrameHead(head, frame.data());
    frame.insert(frame.end(), body.begin(), body.end());
    if (input_.oneIn(16)) frame.resize(input_.below(frame.size() + 1));
    to.bytes.insert(to.bytes.end(), frame.begin(), frame.end());
  }

  Bytes dataBody(FrameHead& head, ScriptedStream& to) {
    Bytes table;
    Bytes places;
    std::size_t carried = 0;
    head.buffer_count = static_cast<std::uint32_t>(input_.below(4));
    for (std::uint32_t i = 0; i < head.buffer_count; ++i) {
      const std::uint64_t size = input_.oneIn(2) ? input_.number() : input_.number<std::uint16_t>();
      const std::uint64_t place = input_.oneIn(4) ? input_.below(4) << kBufferPlaceShift : 0;
      table.resize(table.size() + 8);
      storeLittle<std::uint64_t>(table.data() + table.size() - 8, size | place);
      head.buffer_bytes += size;
      if (place == 0) carried += size;
      if (place == 0) continue;
      places.resize(places.size() + ArenaDescriptor::kBytes);
      descriptor().encode(places.data() + places.size() - ArenaDescriptor::kBytes);
      if (place == kBufferExported && input_.oneIn(2)) addFd(to, 1);
    }
    head.header_bytes = static_cast<std::uint32_t>(input_.below(24));
    if ((head.flags & FrameHead::kSplit) != 0) carried -= bulkShare(carried);
    table.insert(table.end(), places.begin(), places.end());
    const auto header = input_.bytes(head.header_bytes);
    table.insert(table.end(), header.begin(), header.end());
    table.resize(table.size() + head.header_bytes - header.size() + carried);
    return table;
  }

  Bytes offerBody(FrameHead& head, ScriptedStream& to) {
    ArenaOffer offer = memory().arena->offer();
    if (input_.oneIn(8)) offer.file_bytes = input_.number<std::uint32_t>();
    if (input_.oneIn(8)) offer.slot_count = input_.number<std::uint32_t>();
    if (input_.oneIn(8)) offer.magic[0] ^= std::byte{1};
    if (!input_.oneIn(8)) addFd(to, 0);
    Bytes body(ArenaOffer::kBytes);
    offer.encode(body.data());
    head.header_bytes = ArenaOffer::kBytes;
    return body;
  }

  void addFd(ScriptedStream& to, std::size_t which) {
    if (input_.oneIn(8)) which = input_.below(4);
    if (input_.oneIn(16)) {
      ++to.lost_fds;
    } else {
      to.fds.insert(to.fds.begin(), memory().fd(which));
    }
  }

  void close() {
    closing_ = true;
    admission_.close();
    for (const auto& peer : peers_.all())
      peer->closeNow();
    application_.kept.clear();
    streams_.clear();
  }

  FuzzInput input_;
  const EndpointOptions options_;
  Identity self_;
  Application application_;
  SessionNumbers sessions_;
  static inline std::unique_ptr<EventLoop> bulk_loop_;  // made once, as the other loop
  SpareDescriptor spare_;
  EndpointContext context_;
  PeerTable peers_;
  Admission admission_;
  std::vector<std::weak_ptr<Peer>> made_;
  std::vector<std::shared_ptr<ScriptedStream>> streams_;
  std::map<std::int32_t, SessionClaim> known_;  // what the other side knows of each session
  EventLoop::Clock::time_point now_ = EventLoop::Clock::now();
  std::uint64_t next_ = 0;
  std::uint64_t sent_ = 0;
  int steps_ = 0;
  bool closing_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setLogSink([](LogLevel, const std::string&) {});  // of each input some lines
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return runInSteps<Run>(data, size);
}
