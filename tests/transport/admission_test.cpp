// What strangers and mistaken peers can and cannot do to an endpoint, over real sockets.
#include <fstream>

#include "tests/transport/raw_client.h"
#include "transport/base/bytes.h"
#include "transport/frame/frame.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

class Admission : public ::testing::TestWithParam<Via> {
 protected:
  // One endpoint of rank 0 that knows a rank 1.
  void open(const std::function<void(EndpointOptions&)>& adjust = {}) {
    EndpointOptions options = optionsFor(0, GetParam());
    if (adjust) adjust(options);
    endpoint = openEndpoint(options, recorder);
    expectOk(endpoint->addPeer({1, "worker1", "weft1;tcp=127.0.0.1:9"}));
  }
  Identity peer(std::int32_t rank = 1) const { return identityOf(optionsFor(rank)); }

  Recorder recorder;
  std::unique_ptr<Endpoint> endpoint;
};

INSTANTIATE_TEST_SUITE_P(Transports, Admission, ::testing::Values(Via::kUnix, Via::kTcp), viaName);

std::vector<std::byte> frameOf(const std::string& header, std::uint64_t sequence) {
  FrameHead head;
  head.sequence = sequence;
  head.header_bytes = static_cast<std::uint32_t>(header.size());
  std::vector<std::byte> bytes(FrameHead::kBytes);
  encodeFrameHead(head, bytes.data());
  const std::vector<std::byte> text = bytesOf(header);
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

TEST_P(Admission, OneWhoProvesItselfIsHeard) {
  open();
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  client.send(frameOf("hello", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_EQ(recorder.messages()[0].header, "hello");
  EXPECT_EQ(recorder.messages()[0].from, 1);
}

TEST_P(Admission, FalseClaimsAreRefusedAndCounted) {
  open();
  const auto refusal = [&](const Identity& self, std::int32_t rank, const std::string& name) {
    RawClient client(*endpoint);
    EXPECT_FALSE(client.join(self, rank, name));
    EXPECT_TRUE(client.ended());
    return client.refusal;
  };
  Identity wrong_key = peer();
  wrong_key.key = AuthKey::fromHex(std::string(64, 'b')).value();
  EXPECT_EQ(refusal(wrong_key, 0, "worker0"), RefusalCode::kKey);
  Identity wrong_group = peer();
  wrong_group.group = sha256(std::string("other"));
  EXPECT_EQ(refusal(wrong_group, 0, "worker0"), RefusalCode::kGroup);
  Identity wrong_name = peer();
  wrong_name.name = "impostor";
  EXPECT_EQ(refusal(wrong_name, 0, "worker0"), RefusalCode::kIdentity);
  EXPECT_EQ(refusal(peer(0), 0, "worker0"), RefusalCode::kIdentity);  // the endpoint's own rank
  EXPECT_EQ(refusal(peer(), 5, "worker0"), RefusalCode::kIdentity);
  EXPECT_EQ(refusal(peer(), 0, "worker9"), RefusalCode::kIdentity);
  // Counted just after the refusal is sent.
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refused_identity == 4; }));
  EXPECT_EQ(endpoint->stats().refused_key, 1U);
  EXPECT_EQ(endpoint->stats().refused_group, 1U);
  EXPECT_EQ(recorder.messageCount(), 0U);
}

TEST_P(Admission, AnotherVersionIsRefusedWithOurs) {
  open();
  Nonce nonce{};
  Handshake handshake = Handshake::dialler(peer(), 0, "worker0", nonce, {1, 0, 0, 1});
  std::vector<std::byte> hello = handshake.output();
  storeLittle<std::uint16_t>(hello.data() + 8, 999);
  RawClient client(*endpoint);
  client.send(hello);
  const std::vector<std::byte> answer = client.receive(1000);
  ASSERT_EQ(answer.size(), Refusal::kBytes);
  const Refusal refusal =
      decodeRefusal(std::span<const std::byte, Refusal::kBytes>(answer.data(), Refusal::kBytes));
  EXPECT_EQ(refusal.code, RefusalCode::kVersion);
  EXPECT_EQ(refusal.version, kProtocolVersion);
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refused_version == 1; }));
}

TEST_P(Admission, ARepeatedHelloIsRefusedAndCounted) {
  open();
  Nonce nonce{};
  nonce.fill(77);
  const Identity self = peer();
  const std::vector<std::byte> hello =
      Handshake::dialler(self, 0, "worker0", nonce, {1, 0, 0, 1}).output();
  RawClient first(*endpoint);
  first.send(hello);
  EXPECT_EQ(first.receive(Hello::kBytes).size(), Hello::kBytes);
  RawClient second(*endpoint);
  second.send(hello);
  EXPECT_EQ(second.receive(1000).size(), Refusal::kBytes);
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refused_replay == 1; }));
}

TEST_P(Admission, GarbageIsRefusedAndCounted) {
  open();
  RawClient client(*endpoint);
  client.send(std::vector<std::byte>(Hello::kBytes, std::byte{'G'}));
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refused_malformed == 1; }));
}

TEST_P(Admission, HalfAHelloEndsWhenTheDeadlineDoes) {
  open([](EndpointOptions& options) { options.handshake_timeout = milliseconds(50); });
  RawClient client(*endpoint);
  client.send(std::vector<std::byte>(Hello::kBytes - 1, std::byte{'W'}));
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refused_timeout == 1; }));
}

TEST_P(Admission, OnlySoManyStrangersAtOnceAndPeersComeInAfterThem) {
  open([](EndpointOptions& options) { options.handshake_timeout = milliseconds(1500); });
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 64; ++i)
    strangers.push_back(std::make_unique<RawClient>(*endpoint));
  // The 65th is closed at once, long before the deadline of the others.
  EXPECT_TRUE(RawClient(*endpoint).ended());
  EXPECT_EQ(endpoint->stats().refused_timeout, 0U);
  EXPECT_GE(endpoint->stats().refused_overload, 1U);
  // A real peer's dial keeps trying.
  Recorder other;
  const auto real = openEndpoint(optionsFor(1, GetParam()), other);
  expectOk(real->addPeer(infoOf(0, *endpoint)));
  expectOk(real->send(0, textMessage("patience")));
  EXPECT_TRUE(recorder.waitForMessages(1));
}

std::size_t residentBytes() {
  std::size_t pages = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_P(Admission, AClaimOfATerabyteClosesTheLinkAndTakesNoMemory) {
  open();
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  FrameHead head;
  head.sequence = 1;
  head.buffer_count = 1;
  head.buffer_bytes = std::uint64_t{1} << 40;
  FrameHeadBytes bytes{};
  encodeFrameHead(head, bytes.data());
  const std::size_t before = residentBytes();
  client.send(bytes);
  EXPECT_TRUE(client.ended());
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kLimitExceeded);
  EXPECT_NE(recorder.losses()[0].reason.text().find("worker 'worker1' (rank 1)"),
            std::string::npos);
  EXPECT_LT(residentBytes(), before + (std::size_t{8} << 20));
}

TEST_P(Admission, AFrameThatIsNoneClosesTheLink) {
  open();
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  client.send(std::vector<std::byte>(FrameHead::kBytes, std::byte{'G'}));
  EXPECT_TRUE(client.ended());
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kProtocol);
}

TEST_P(Admission, AnEndWithoutGoodbyeIsALossAndAGoodbyeIsNot) {
  open();
  {
    RawClient client(*endpoint);
    ASSERT_TRUE(client.join(peer(), 0, "worker0"));
    client.send(frameOf("last words", 1));
    client.finishWriting();
    ASSERT_TRUE(recorder.waitForLosses(1));
  }
  EXPECT_EQ(recorder.messageCount(), 1U);
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kPeerLost);
  // The same life may not come back: both sides must agree that it is over.
  RawClient again(*endpoint);
  EXPECT_FALSE(again.join(peer(), 0, "worker0"));
  EXPECT_EQ(again.refusal, RefusalCode::kStale);
}

TEST_P(Admission, OneThatDialsBeforeItIsKnownWaitsForItsName) {
  open();
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(2), 0, "worker0"));
  client.send(frameOf("early", 1));
  RawClient impostor(*endpoint);
  EXPECT_EQ(recorder.messageCount(), 0U);
  expectOk(endpoint->addPeer({2, "worker2", "weft1;tcp=127.0.0.1:9"}));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_EQ(recorder.messages()[0].from, 2);
  // And the way back is that connection: nobody listens at the address given.
  expectOk(endpoint->send(2, textMessage("back")));
  const std::vector<std::byte> bytes = client.receive(FrameHead::kBytes + 4);
  EXPECT_EQ(textOf(std::span(bytes).last(4)), "back");
}

TEST_P(Admission, OneThatIsNeverNamedIsCutOff) {
  open([](EndpointOptions& options) {
    options.connect_timeout = milliseconds(100);
    options.heartbeat_interval = milliseconds(20);
    options.peer_timeout = milliseconds(5000);
  });
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(2), 0, "worker0"));
  // Meanwhile it hears that this side lives.
  const std::vector<std::byte> beat = client.receive(FrameHead::kBytes);
  ASSERT_EQ(beat.size(), FrameHead::kBytes);
  EXPECT_EQ(beat[5], static_cast<std::byte>(FrameKind::kHeartbeat));
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(recorder.losses().empty());
}

TEST_P(Admission, InAnOpenGroupAnUnknownPeerJoins) {
  open([](EndpointOptions& options) { options.accept_unknown_peers = true; });
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(7), 0, "worker0"));
  client.send(frameOf("new here", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
  ASSERT_EQ(recorder.joined().size(), 1U);
  EXPECT_EQ(recorder.joined()[0].name, "worker7");
  expectOk(endpoint->send(7, textMessage("welcome")));
  EXPECT_EQ(client.receive(FrameHead::kBytes + 7).size(), FrameHead::kBytes + 7);
  // Its address may be told later; another name for its rank may not.
  expectOk(endpoint->addPeer({7, "worker7", "weft1;tcp=127.0.0.1:9"}));
  EXPECT_EQ(endpoint->addPeer({7, "other", "weft1;tcp=127.0.0.1:9"}).code(),
            ErrorCode::kInvalidArgument);
}

TEST_P(Admission, ANewLifeOfAConnectedPeerEndsTheOldOne) {
  open([](EndpointOptions& options) { options.accept_unknown_peers = true; });
  RawClient old_life(*endpoint);
  ASSERT_TRUE(old_life.join(peer(), 0, "worker0"));
  Identity again = peer();
  again.incarnation = 99;
  RawClient new_life(*endpoint);
  ASSERT_TRUE(new_life.join(again, 0, "worker0"));
  ASSERT_TRUE(recorder.waitForLosses(1));
  ASSERT_TRUE(recorder.waitForJoined(1));
  EXPECT_TRUE(old_life.ended());
  new_life.send(frameOf("second", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
}

}  // namespace
}  // namespace weft::transport
