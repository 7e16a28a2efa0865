// libFuzzer: what answers where a peer is dialled: somebody who says anything, refuses for any
// reason, stops or hangs up in the middle; or a member, whose words somebody changes on the way.
// The dialler ends once, connected to a holder of the key only, as whom it dialled, with what that
// one claims; or with an error, or it waits to try again.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/fuzz_input.h"
#include "tests/transport/fuzz_steps.h"
#include "transport/base/log.h"
#include "transport/connect/connector.h"
#include "transport/io/socket.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;
using weft::testing::FuzzInput;
using weft::testing::require;

constexpr std::int32_t kSelf = 1;
constexpr std::int32_t kPeer = 0;
constexpr int kSteps = 32;

Identity identityOf(std::int32_t rank, char key) {
  Identity made;
  made.name = "worker" + std::to_string(rank);
  made.rank = rank;
  made.incarnation = 70 + static_cast<std::uint64_t>(rank);
  made.group = sha256(std::string("group"));
  made.key = AuthKey::fromHex(std::string(64, key)).value();
  return made;
}

// Where the dialled peer listens, for all runs.
struct Door {
  Address address;
  UniqueFd fd;
  Door() {
    address.unix_name = "weft-fuzz-dial-" + std::to_string(::getpid());
    address.host = "host";
    fd = std::move(listenUnix(address.unix_name).value().fd);
  }
  UniqueFd open() const {
    return UniqueFd(::accept4(fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  }
};
const Door& door() {
  static const Door one;
  return one;
}

struct NoMessages final : EndpointHandler {
  Disposition onHeader(std::int32_t, std::span<const std::byte>, std::span<const std::uint64_t>,
                       std::vector<OwnedBuffer>&) override {
    return Disposition::kRefuse;
  }
  void onMessage(std::int32_t, std::span<const std::byte>, std::vector<OwnedBuffer>) override {}
  void onPeerLost(const PeerLoss&) override {}
};

// The member's side, as the input has it.
struct Policy final : AcceptPolicy {
  RefusalCode admit(const Hello&, const SessionClaim&, SessionClaim& ours) override {
    ours = claim;
    return answer;
  }
  RefusalCode answer = RefusalCode::kNone;
  SessionClaim claim{2, 3, 4, 5};
};

EndpointOptions optionsOf() {
  EndpointOptions options;
  options.rank = kSelf;
  options.name = "worker1";
  options.tcp = false;
  options.handshake_timeout = options.connect_timeout = std::chrono::hours(1);
  return options;
}

class Run {
 public:
  Run(EventLoop& loop, const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        context_{loop, options_, self_, "host", application_, sessions_, bulk_loop_, spare_},
        met_(input_.oneIn(2)),
        member_(identityOf(kPeer, input_.oneIn(4) ? 'b' : 'a')),
        right_key_(sameKey()) {
    if (input_.oneIn(8)) policy_.answer = static_cast<RefusalCode>(input_.below(kRefusalCodes));
    connector_ = std::make_unique<Connector>(
        context_, PeerInfo{kPeer, "worker0", ""}, door().address,
        SessionClaim{3, met_ ? 2U : 0U, 1, 1},
        Connector::RetryBackoff{milliseconds(0), options_.handshake_timeout});
    connector_->start([this](Connector::Outcome outcome) { onEnd(outcome); });
  }
  ~Run() {
    while (door().open().valid()) {
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // False: it is over, and this may go.
  bool step() {
    if (ended_ || input_.empty() || ++steps_ > kSteps) {
      connector_.reset();
      return turns_++ < 2;  // what was posted has run
    }
    if (!connection_.valid()) {
      connection_ = door().open();
      dialler_.clear();
      acceptor_.emplace(Handshake::acceptor(member_, Nonce{}, policy_));
      words_.clear();
      said_.clear();
    }
    if (connection_.valid()) act();
    return true;
  }

 private:
  bool sameKey() const {
    const std::byte text{7};
    return hmacSha256(member_.key, std::span(&text, 1)) ==
           hmacSha256(self_.key, std::span(&text, 1));
  }

  void act() {
    hear();
    switch (input_.below(8)) {
      case 0: {
        const auto some = input_.bytes(input_.number());
        return say(some, !some.empty());
      }
      case 1: {
        const auto code = static_cast<RefusalCode>(input_.below(16));
        displaced_ |= code == RefusalCode::kDisplaced;
        const auto version = static_cast<std::uint16_t>(input_.below(8));
        return say(encodeRefusal({version, code}), true);
      }
      case 2:
        if (input_.oneIn(2)) {
          ::shutdown(connection_.get(), SHUT_WR);
        } else {
          connection_.reset();
        }
        return;
      default:
        return answer();
    }
  }

  // What the dialler has said.
  void hear() {
    std::byte some[512];
    while (true) {
      const ssize_t got = ::recv(connection_.get(), some, sizeof(some), 0);
      if (got <= 0) return;
      dialler_.insert(dialler_.end(), some, some + got);
    }
  }

  // What a member says to that.
  void answer() {
    const std::size_t some = std::min(acceptor_->wanted(), dialler_.size());
    acceptor_->feed(std::span(dialler_).first(some));
    dialler_.erase(dialler_.begin(), dialler_.begin() + static_cast<std::ptrdiff_t>(some));
    displaced_ |= acceptor_->refusal() == RefusalCode::kDisplaced;
    std::vector<std::byte> words = acceptor_->output();
    if (words.empty()) return;
    words_.insert(words_.end(), words.begin(), words.end());
    const bool alters = input_.oneIn(4);
    if (alters && input_.oneIn(2)) {
      words.resize(input_.number<std::uint16_t>() % words.size());
    } else if (alters) {
      words[input_.number<std::uint16_t>() % words.size()] ^=
          static_cast<std::byte>(1 << input_.below(8));
    }
    say(words, alters);
  }

  void say(std::span<const std::byte> bytes, bool alters) {
    displaced_ |= alters;  // it may say that, too
    said_.insert(said_.end(), bytes.begin(), bytes.end());
    static_cast<void>(::send(connection_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  void onEnd(const Connector::Outcome& outcome) {
    require(!ended_);
    ended_ = true;
    require(outcome.error || outcome.stream != nullptr);
    require(!outcome.displaced || displaced_);
    if (outcome.error) return;
    require(right_key_ && acceptor_->status() == Handshake::Status::kDone);
    require(said_.size() >= words_.size() &&
            std::equal(words_.begin(), words_.end(), said_.begin()));
    require(outcome.peer.rank == kPeer && outcome.peer.name == "worker0" &&
            outcome.peer.incarnation == member_.incarnation && outcome.claim == policy_.claim);
  }

  FuzzInput input_;
  const EndpointOptions options_ = optionsOf();
  const Identity self_ = identityOf(kSelf, 'a');
  NoMessages application_;
  SessionNumbers sessions_;
  std::unique_ptr<EventLoop> bulk_loop_;
  SpareDescriptor spare_;
  EndpointContext context_;
  const bool met_;  // a session goes on
  const Identity member_;
  const bool right_key_;
  Policy policy_;
  std::unique_ptr<Connector> connector_;

  UniqueFd connection_;
  std::optional<Handshake> acceptor_;
  std::vector<std::byte> dialler_;  // its words, not yet heard by acceptor_
  std::vector<std::byte> words_;    // the member's, on this connection
  std::vector<std::byte> said_;     // what was made of them
  bool displaced_ = false;
  bool ended_ = false;
  int steps_ = 0;
  int turns_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setLogSink([](LogLevel, const std::string&) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return runInSteps<Run>(data, size);
}
