// Endpoints whose connections are encrypted: who may connect to whom, by key and by certificates,
// and what somebody on the way sees and can do.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tests/transport/certificates.h"
#include "tests/transport/payload.h"
#include "tests/transport/proxy.h"
#include "tests/transport/raw_client.h"
#include "tests/transport/recorder.h"
#include "tests/transport/stream_pieces.h"
#include "transport/auth/handshake_runner.h"
#include "transport/base/log.h"
#include "transport/tls/tls_stream.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMiB = std::size_t{1} << 20;
const std::string kWords = "a sentence that nobody on the way shall read";

// Rank 0 dials rank 1 through a proxy; the options decide what comes of it.
struct Dialled {
  Dialled(EndpointOptions zero, EndpointOptions one) {
    zero.bulk.threshold = one.bulk.threshold = 64U << 10;
    zero.connect_timeout = milliseconds(2000);
    a = openEndpoint(std::move(zero), first);
    b = openEndpoint(std::move(one), second);
    proxy = std::make_unique<Proxy>(b->address(), true);
    proxy->remember();
  }
  void dial() {
    expectOk(a->addPeer({1, "worker1", proxy->address()}));
    // Its address is nobody's: all goes over the dialler's connection.
    expectOk(b->addPeer({0, "worker0", a->address()}));
    expectOk(a->send(1, textMessage(kWords)));
  }
  void expectArrives() {
    dial();
    ASSERT_TRUE(second.waitForMessages(1));
    EXPECT_EQ(second.messages()[0].header, kWords);
    EXPECT_GT(proxy->carriedBytes(), 600U);
  }
  // What the dialler is told.
  std::string refusal() {
    dial();
    if (!first.waitForLosses(1)) return "nothing";
    EXPECT_EQ(first.losses()[0].reason.code(), ErrorCode::kAuthFailed);
    EXPECT_EQ(second.messageCount(), 0U);
    EXPECT_FALSE(proxy->carried(kWords));
    return first.losses()[0].reason.text();
  }

  Recorder first;
  Recorder second;
  std::unique_ptr<Endpoint> a;
  std::unique_ptr<Endpoint> b;
  std::unique_ptr<Proxy> proxy;
};

EndpointOptions with(std::int32_t rank, Encryption encryption) {
  EndpointOptions options = optionsFor(rank, Via::kTcp);
  options.encryption = encryption;
  return options;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(TlsLink, NobodyOnTheWayReadsWhatIsSaid) {
  Dialled plain(with(0, Encryption::kOff), with(1, Encryption::kOff));
  plain.expectArrives();
  EXPECT_TRUE(plain.proxy->carried(kWords));  // the proxy would see it

  Dialled secret(with(0, Encryption::kOn), with(1, Encryption::kOn));
  secret.expectArrives();
  EXPECT_FALSE(secret.proxy->carried(kWords));
  EXPECT_FALSE(secret.proxy->carried("WEFTFRAM"));
}

TEST(TlsLink, LargeMessagesAreEncryptedOnBothConnections) {
  Dialled secret(with(0, Encryption::kOn), with(1, Encryption::kOn));
  secret.expectArrives();
  std::size_t sent = 0;
  OwnedBuffer same = newBuffer(4 * kMiB);
  for (std::size_t at = 0; at + kWords.size() <= same.size; at += kWords.size())
    std::memcpy(same.data + at, kWords.data(), kWords.size());
  EXPECT_TRUE(eventually([&] {
    ++sent;
    expectOk(secret.a->send(1, {bytesOf("large"), {same}}));
    return secret.second.waitForMessages(1 + sent) && statsOf(*secret.a).bulk_bytes_sent > kMiB;
  }));
  for (const Recorder::Received& got : secret.second.messages()) {
    if (got.header != "large") continue;
    EXPECT_EQ(checksum(got.buffers.at(0)), checksum(same));
  }
  EXPECT_GE(secret.proxy->connections(), 2U);
  EXPECT_FALSE(secret.proxy->carried(kWords));
}

TEST(TlsLink, WhatOneRequiresAndTheOtherHasOffMakesNoConnection) {
  Dialled dialler(with(0, Encryption::kOn), with(1, Encryption::kOff));
  EXPECT_SAYS(dialler.refusal(), "WEFT_ENCRYPTION");
  EXPECT_TRUE(
      eventually([&] { return dialler.b->stats().refusedBy(RefusalCause::kEncryption) == 1; }));
  Dialled acceptor(with(0, Encryption::kOff), with(1, Encryption::kOn));
  EXPECT_SAYS(acceptor.refusal(), "WEFT_ENCRYPTION");
  EXPECT_TRUE(
      eventually([&] { return acceptor.b->stats().refusedBy(RefusalCause::kEncryption) == 1; }));
}

TEST(TlsLink, BetweenHostsMeansNotWithinOne) {
  Dialled near(with(0, Encryption::kBetweenHosts), with(1, Encryption::kBetweenHosts));
  near.expectArrives();
  EXPECT_TRUE(near.proxy->carried(kWords));
  // One end that requires it is enough.
  Dialled one(with(0, Encryption::kBetweenHosts), with(1, Encryption::kOn));
  one.expectArrives();
  EXPECT_FALSE(one.proxy->carried(kWords));
  Dialled off(with(0, Encryption::kBetweenHosts), with(1, Encryption::kOff));
  off.expectArrives();
}

// What the endpoint of rank 0 answers to a dialler of this address that never encrypts.
RefusalCode answerTo(const char* address) {
  Recorder recorder;
  EndpointOptions options = with(0, Encryption::kBetweenHosts);
  options.accept_unknown_peers = true;
  const auto endpoint = openEndpoint(options, recorder);
  RawClient client(*endpoint, address);
  client.join(identityOf(with(1, Encryption::kOff)), 0, "worker0");
  return client.refusal;
}

TEST(TlsLink, BetweenHostsTheAddressesDecide) {
  EXPECT_EQ(answerTo("127.0.0.1"), RefusalCode::kNone);
  EXPECT_EQ(answerTo("127.0.0.2"), RefusalCode::kEncryption);
}

TEST(TlsLink, WhoeverTakesTheWishOutOfAHelloGetsNoConnection) {
  Dialled secret(with(0, Encryption::kOn), with(1, Encryption::kBetweenHosts));
  constexpr std::size_t kEncryptionAt = 20;
  secret.proxy->change(kEncryptionAt, std::byte{1});  // "possible": the acceptor would go without
  const std::string why = secret.refusal();
  EXPECT_SAYS(why, "keys differ");
  EXPECT_TRUE(eventually([&] { return secret.b->stats().refusedBy(RefusalCause::kKey) >= 1; }));
}

TEST(TlsLink, AWrongKeyIsToldAsEver) {
  EndpointOptions other = with(0, Encryption::kOn);
  other.key = AuthKey::fromHex(std::string(64, 'c')).value();
  Dialled secret(other, with(1, Encryption::kOn));
  EXPECT_SAYS(secret.refusal(), "keys differ");
  EXPECT_TRUE(eventually([&] { return secret.b->stats().refusedBy(RefusalCause::kKey) == 1; }));
}

TEST(TlsLink, WhoStallsInTheHandshakeIsCutOff) {
  Recorder recorder;
  EndpointOptions options = with(0, Encryption::kOn);
  options.handshake_timeout = milliseconds(2000);  // the steps before the stall are within it
  const auto endpoint = openEndpoint(options, recorder);
  const Identity self = identityOf(with(1, Encryption::kOn));
  RawClient client(*endpoint);
  Handshake handshake = Handshake::dialler(self, 0, "worker0", Nonce{1}, {1, 0, 0, 1},
                                           {EncryptionTerms::Wish::kRequired, false});
  client.send(handshake.output());
  while (handshake.wanted() > 0) {
    const std::vector<std::byte> got = client.receive(handshake.wanted());
    ASSERT_FALSE(got.empty());
    handshake.feed(got);
    client.send(handshake.output());
  }
  ASSERT_TRUE(handshake.wantsTls());
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kTimeout), 0U);
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kTimeout) == 1; }));
}

// --- certificates ---

class TlsCertificates : public ::testing::Test {
 protected:
  EndpointOptions worker(std::int32_t rank, const TlsFiles& files) {
    EndpointOptions options = with(rank, Encryption::kOn);
    options.certificates = files;
    return options;
  }
  std::string openingFails(const EndpointOptions& options) {
    Recorder recorder;
    const auto made = Endpoint::create(options, recorder);
    return made.ok() ? "it opens" : made.error().text();
  }

  Certificates certificates;
  const Certificates::Authority ours = Certificates::authority("ours");
  const Certificates::Authority others = Certificates::authority("another");
};

TEST_F(TlsCertificates, TwoThatHaveTheirNamesConnect) {
  Dialled secret(worker(0, certificates.worker(ours, "worker0")),
                 worker(1, certificates.worker(ours, "some host", "worker1")));
  secret.expectArrives();
  EXPECT_FALSE(secret.proxy->carried(kWords));
}

TEST_F(TlsCertificates, AnAuthorityThatIsNotOursIsRefusedByEither) {
  TlsFiles theirs = certificates.worker(others, "worker0");
  theirs.authorities = certificates.worker(ours, "x").authorities;  // it would trust us
  Dialled dialler(worker(0, theirs), worker(1, certificates.worker(ours, "worker1")));
  EXPECT_SAYS(dialler.refusal(), "certificate");
  EXPECT_TRUE(
      eventually([&] { return dialler.b->stats().refusedBy(RefusalCause::kCertificate) >= 1; }));

  theirs = certificates.worker(others, "worker1");
  theirs.authorities = certificates.worker(ours, "x").authorities;
  Dialled acceptor(worker(0, certificates.worker(ours, "worker0")), worker(1, theirs));
  EXPECT_SAYS(acceptor.refusal(), "its certificate is not valid here");
}

std::mutex g_logged_mutex;
std::string g_logged;

bool isLogged(const std::string& text) {
  const std::lock_guard<std::mutex> lock(g_logged_mutex);
  return g_logged.find(text) != std::string::npos;
}

TEST_F(TlsCertificates, WhoRefusesOneWithoutCertificatesSaysSoInItsLog) {
  setLogSink([](LogLevel, const std::string& text) {
    const std::lock_guard<std::mutex> lock(g_logged_mutex);
    g_logged += text;
  });
  {
    Dialled without(with(0, Encryption::kOn), worker(1, certificates.worker(ours, "worker1")));
    EXPECT_SAYS(without.refusal(), "WEFT_TLS_CERT");
    EXPECT_TRUE(eventually([] { return isLogged("says it is from worker 'worker0' (rank 0)"); }));
    EXPECT_TRUE(isLogged("one of the two has certificates"));
  }
  setLogSink(nullptr);
}

TEST_F(TlsCertificates, OneThatIsOverIsRefused) {
  Dialled secret(worker(0, certificates.worker(ours, "worker0")),
                 worker(1, certificates.worker(ours, "worker1", "", -60)));
  EXPECT_SAYS(secret.refusal(), "expired");
}

// Both sides of one connection, without an endpoint that looks at its own certificate first.
class BothSides {
 public:
  BothSides() { connect(near_, far_); }
  // In the middle of the two, from now on: the dialler's end and the acceptor's.
  std::pair<std::shared_ptr<Stream>, std::shared_ptr<Stream>> between() {
    UniqueFd diallers = std::move(far_);
    UniqueFd acceptors;
    connect(acceptors, far_);
    return {std::make_shared<SocketStream>(std::move(diallers), "tcp"),
            std::make_shared<SocketStream>(std::move(acceptors), "tcp")};
  }
  ~BothSides() {
    std::promise<void> gone;
    loop_->post([&] {
      dials_.reset();
      accepts_.reset();
      gone.set_value();
    });
    gone.get_future().wait();
    loop_->stop();
  }

  std::pair<HandshakeOutcome, HandshakeOutcome> shakeHands(const Identity& zero,
                                                           const Identity& one) {
    const EncryptionTerms terms{EncryptionTerms::Wish::kRequired, true};
    std::promise<HandshakeOutcome> dialler;
    std::promise<HandshakeOutcome> acceptor;
    loop_->post([&] {
      dials_ = std::make_unique<HandshakeRunner>(
          *loop_, std::make_shared<SocketStream>(std::move(near_), "tcp"),
          Handshake::dialler(zero, 1, "worker1", Nonce{1}, {1, 0, 0, 1}, terms));
      accepts_ = std::make_unique<HandshakeRunner>(
          *loop_, std::make_shared<SocketStream>(std::move(far_), "tcp"),
          Handshake::acceptor(one, Nonce{2}, policy_, terms));
      dials_->start(milliseconds(5000),
                    [&](HandshakeOutcome outcome) { dialler.set_value(std::move(outcome)); });
      accepts_->start(milliseconds(5000),
                      [&](HandshakeOutcome outcome) { acceptor.set_value(std::move(outcome)); });
    });
    HandshakeOutcome dialled = dialler.get_future().get();
    return {std::move(dialled), acceptor.get_future().get()};
  }
  int admitted() const { return policy_.admitted; }

 private:
  struct Policy final : AcceptPolicy {
    int admitted = 0;
    RefusalCode admit(const Hello&, const SessionClaim&, SessionClaim& ours) override {
      ++admitted;
      ours = {2, 1, 0, 1};
      return RefusalCode::kNone;
    }
  };

  static void connect(UniqueFd& near, UniqueFd& far) {
    BoundSocket bound = listenTcp("127.0.0.1").value();
    near = std::move(connectTcp("127.0.0.1", bound.port).fd);
    pollfd ready{bound.fd.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
    far = UniqueFd(::accept4(bound.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  }

  std::unique_ptr<EventLoop> loop_ = std::move(EventLoop::create("test-loop")).value();
  Policy policy_;
  UniqueFd near_;
  UniqueFd far_;
  std::unique_ptr<HandshakeRunner> dials_;
  std::unique_ptr<HandshakeRunner> accepts_;
};

Identity whoSays(std::int32_t rank, const TlsFiles& files) {
  Identity self = identityOf(with(rank, Encryption::kOn));
  self.tls = TlsContext::withCertificates(files).value();
  return self;
}

using Status = Handshake::Status;

// A stolen worker has the group's key and a right certificate, of its own name.
TEST_F(TlsCertificates, AStolenDiallerCannotTakeAnothersName) {
  const Identity zero = whoSays(0, certificates.worker(ours, "worker7"));
  const Identity one = whoSays(1, certificates.worker(ours, "worker1"));
  BothSides both;
  const auto [dialler, acceptor] = both.shakeHands(zero, one);
  EXPECT_EQ(acceptor.handshake.status(), Status::kRefused);
  EXPECT_EQ(acceptor.tls_problem.text(),
            "it says that it is 'worker0', but its certificate is for 'worker7'");
  EXPECT_EQ(dialler.handshake.status(), Status::kRefusedByPeer);
  EXPECT_EQ(dialler.handshake.refusal(), RefusalCode::kCertificateName);
  EXPECT_EQ(both.admitted(), 0);
}

TEST_F(TlsCertificates, AStolenAcceptorCannotTakeAnothersName) {
  const Identity zero = whoSays(0, certificates.worker(ours, "worker0"));
  const Identity one = whoSays(1, certificates.worker(ours, "worker7", "Worker1"));
  BothSides both;
  const auto [dialler, acceptor] = both.shakeHands(zero, one);
  EXPECT_EQ(dialler.handshake.status(), Status::kRefused);
  EXPECT_EQ(dialler.tls_problem.text(),
            "it says that it is 'worker1', but its certificate is for 'Worker1', 'worker7'");
  EXPECT_EQ(dialler.stream, nullptr);
}

TEST_F(TlsCertificates, TheSameTwoWithTheirNamesAgree) {
  const Identity zero = whoSays(0, certificates.worker(ours, "worker0"));
  const Identity one = whoSays(1, certificates.worker(ours, "worker7", "worker1"));
  BothSides both;
  const auto [dialler, acceptor] = both.shakeHands(zero, one);
  EXPECT_EQ(dialler.handshake.status(), Status::kDone);
  EXPECT_EQ(acceptor.handshake.status(), Status::kDone);
  EXPECT_EQ(both.admitted(), 1);
}

// Moves what comes from either side to the other, until one of them ends.
void relay(Stream& one, Stream& other) {
  const auto move = [](Stream& from, Stream& to) {
    std::array<std::byte, 1024> bytes;
    while (true) {
      iovec into{bytes.data(), bytes.size()};
      const IoResult got = from.read(std::span(&into, 1));
      if (got.error == EAGAIN) return true;
      if (got.error != 0 || got.end) return false;
      writeAll(to, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got.count)});
    }
  };
  while (move(one, other) && move(other, one)) {
    std::array<pollfd, 2> ready{pollfd{one.pollFd(), POLLIN, 0}, pollfd{other.pollFd(), POLLIN, 0}};
    ASSERT_GT(::poll(ready.data(), ready.size(), 10'000), 0);
  }
  one.breakOff();
  other.breakOff();
}

// Exactly `count` bytes, and no more.
void relayPlain(Stream& from, Stream& to, std::size_t count) {
  for (Bytes bytes(count); count > 0;) {
    iovec into{bytes.data(), count};
    const IoResult got = from.read(std::span(&into, 1));
    if (got.error == EAGAIN) {
      pollfd ready{from.pollFd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
      continue;
    }
    ASSERT_TRUE(got.error == 0 && got.count > 0);
    count -= got.count;
    writeAll(to, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got.count)});
  }
}

TlsStream finishTls(const std::shared_ptr<TlsConnection>& connection) {
  TlsConnection::Step step = connection->handshake();
  while (step == TlsConnection::Step::kAgain) {
    pollfd ready{connection->below()->pollFd(), POLLIN, 0};
    if (::poll(&ready, 1, 10'000) != 1) break;
    step = connection->handshake();
  }
  EXPECT_EQ(step, TlsConnection::Step::kDone) << connection->problem().text();
  return TlsStream(connection);
}

// It holds both workers' certificates, but not the group's key: it lets them prove that to each
// other, through it.
TEST_F(TlsCertificates, WhoHasStolenCertificatesOnlyCannotRelayTheKeysProofs) {
  const TlsFiles of_zero = certificates.worker(ours, "worker0");
  const TlsFiles of_one = certificates.worker(ours, "worker1");
  BothSides both;
  const auto [near, far] = both.between();
  std::thread thief([&, near = near, far = far] {
    relayPlain(*near, *far, Hello::kBytes);
    relayPlain(*far, *near, Hello::kBytes);
    relayPlain(*near, *far, Proof::kBytes);
    relayPlain(*far, *near, StartTls::kBytes);
    const auto begin = [](const std::shared_ptr<Stream>& over, const TlsFiles& files,
                          TlsConnection::Role role) {
      return std::make_shared<TlsConnection>(over, TlsContext::withCertificates(files).value(),
                                             role, TlsConnection::PresharedKey{});
    };
    const auto one = begin(near, of_one, TlsConnection::Role::kAcceptor);
    const auto zero = begin(far, of_zero, TlsConnection::Role::kDialler);
    TlsStream as_one = finishTls(one);
    TlsStream as_zero = finishTls(zero);
    relay(as_one, as_zero);
  });
  const auto [dialler, acceptor] = both.shakeHands(whoSays(0, of_zero), whoSays(1, of_one));
  thief.join();
  EXPECT_EQ(acceptor.handshake.status(), Status::kRefused);
  EXPECT_EQ(acceptor.handshake.refusal(), RefusalCode::kKey);
  EXPECT_NE(dialler.handshake.status(), Status::kDone);
  EXPECT_EQ(both.admitted(), 0);
}

TEST_F(TlsCertificates, AnEndpointDoesNotOpenUnderAnothersName) {
  EXPECT_SAYS(openingFails(worker(0, certificates.worker(ours, "worker7", "worker8"))),
              "is not for this worker's name, 'worker0'");
}

TEST_F(TlsCertificates, AllThreeFilesAreNeededAndMustFit) {
  TlsFiles files = certificates.worker(ours, "worker0");
  TlsFiles two = files;
  two.authorities.clear();
  EXPECT_SAYS(openingFails(worker(0, two)), "WEFT_TLS_CA");
  TlsFiles mixed = files;
  mixed.key = certificates.worker(ours, "worker0").key;
  EXPECT_SAYS(openingFails(worker(0, mixed)), "WEFT_TLS_KEY");
  TlsFiles missing = files;
  missing.certificate += ".not";
  EXPECT_SAYS(openingFails(worker(0, missing)), "WEFT_TLS_CERT");
  ASSERT_EQ(::chmod(files.key.c_str(), 0644), 0);
  EXPECT_SAYS(openingFails(worker(0, files)), "chmod 600");
  ASSERT_EQ(::chmod(files.key.c_str(), 0620), 0);
  EXPECT_SAYS(openingFails(worker(0, files)), "chmod g-w");
}

// Whoever opens a fifo waits for its writer.
TEST_F(TlsCertificates, AFifoIsRefusedAndNotWaitedFor) {
  for (std::string TlsFiles::*const which :
       {&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::authorities}) {
    TlsFiles files = certificates.worker(ours, "worker0");
    ASSERT_EQ(::unlink((files.*which).c_str()), 0);
    ASSERT_EQ(::mkfifo((files.*which).c_str(), 0600), 0);
    EXPECT_SAYS(openingFails(worker(0, files)), files.*which + "', is not a regular file");
    EXPECT_FALSE(which == &TlsFiles::certificate && certificateName(files.*which).ok());
  }
}

TEST_F(TlsCertificates, OneWithoutAnyIsTold) {
  Dialled secret(with(0, Encryption::kOn), worker(1, certificates.worker(ours, "worker1")));
  EXPECT_SAYS(secret.refusal(), "WEFT_TLS_CERT");
  EXPECT_TRUE(
      eventually([&] { return secret.b->stats().refusedBy(RefusalCause::kEncryption) == 1; }));
}

}  // namespace
}  // namespace weft::transport
