// What strangers and mistaken peers can and cannot do to an endpoint, over real sockets.
#include <fcntl.h>

#include <cstring>
#include <future>
#include <optional>
#include <stdexcept>

#include "tests/support/resident.h"
#include "tests/transport/other_user.h"
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
  EXPECT_TRUE(
      eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kIdentity) == 4; }));
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kKey), 1U);
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kGroup), 1U);
  EXPECT_EQ(recorder.messageCount(), 0U);
}

// It has sent frames, and nobody here knows them any more.
TEST_P(Admission, ASessionThatWasRemovedIsNotContinued) {
  open();
  RawClient first(*endpoint);
  ASSERT_TRUE(first.join(peer(), 0, "worker0"));
  first.send(frameOf("hello", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
  endpoint->removePeer(1);
  std::promise<void> removed;
  endpoint->runAfter(milliseconds(0), [&] { removed.set_value(); });
  removed.get_future().wait();
  RawClient second(*endpoint);
  second.claim = {first.claim.own, first.peer_claim.own, 0, 2};
  EXPECT_FALSE(second.join(peer(), 0, "worker0"));
  EXPECT_EQ(second.refusal, RefusalCode::kStale);
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
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kVersion) == 1; }));
}

TEST_P(Admission, ARepeatedConversationIsRefusedAndCounted) {
  open();
  Nonce nonce{};
  nonce.fill(77);
  const Identity self = peer();
  Handshake handshake = Handshake::dialler(self, 0, "worker0", nonce, {1, 0, 0, 1});
  const std::vector<std::byte> hello = handshake.output();
  std::vector<std::byte> proof;
  RawClient first(*endpoint);
  first.send(hello);
  while (proof.empty()) {
    const std::vector<std::byte> answer = first.receive(handshake.wanted());
    ASSERT_FALSE(answer.empty());
    handshake.feed(answer);
    proof = handshake.output();
  }
  first.send(proof);
  EXPECT_EQ(first.receive(Proof::kBytes).size(), Proof::kBytes);
  RawClient second(*endpoint);
  second.send(hello);
  EXPECT_EQ(second.receive(Hello::kBytes).size(), Hello::kBytes);
  second.send(proof);
  EXPECT_EQ(second.receive(1000).size(), Refusal::kBytes);
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kKey) == 1; }));
}

TEST_P(Admission, GarbageIsRefusedAndCounted) {
  open();
  RawClient client(*endpoint);
  client.send(std::vector<std::byte>(Hello::kBytes, std::byte{'G'}));
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(
      eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kMalformed) == 1; }));
}

TEST_P(Admission, HalfAHelloEndsWhenTheDeadlineDoes) {
  open([](EndpointOptions& options) { options.handshake_timeout = milliseconds(50); });
  RawClient client(*endpoint);
  client.send(std::vector<std::byte>(Hello::kBytes - 1, std::byte{'W'}));
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(eventually([&] { return endpoint->stats().refusedBy(RefusalCause::kTimeout) == 1; }));
}

TEST_P(Admission, DescriptorsOfAStrangerAreNotKept) {
  if (GetParam() == Via::kTcp) GTEST_SKIP() << "descriptors go over Unix sockets only";
  open();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  RawClient client(*endpoint);
  // The first byte of a hello: the endpoint waits for the others.
  client.sendWithFds(std::vector<std::byte>(1), std::vector<int>(16, writing.get()));
  writing = UniqueFd();
  pollfd ended{reading.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, static_cast<int>(milliseconds(kPatience).count())), 1)
      << "the endpoint holds the pipe's other end open";
}

TEST_P(Admission, AnotherUserIsTurnedAwayFromTheUnixSocket) {
  open();
  const bool asked = asAnotherUser([&] {
    RawClient client(*endpoint);
    EXPECT_EQ(client.join(peer(), 0, "worker0"), GetParam() == Via::kTcp);
    EXPECT_EQ(client.refusal, RefusalCode::kNone);  // it is not told a word
  });
  if (!asked) GTEST_SKIP() << "becoming another user needs root";
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kUser), GetParam() == Via::kUnix ? 1U : 0U);
  // This user's own come in.
  RawClient client(*endpoint);
  Identity again = peer();
  again.rank = 2;
  again.name = "worker2";
  EXPECT_TRUE(client.join(again, 0, "worker0"));
}

TEST_P(Admission, AnotherUserComesInWhereTheOptionAllowsIt) {
  open([](EndpointOptions& options) { options.accept_other_users = true; });
  const bool asked = asAnotherUser([&] {
    RawClient client(*endpoint);
    EXPECT_TRUE(client.join(peer(), 0, "worker0"));
  });
  if (!asked) GTEST_SKIP() << "becoming another user needs root";
  EXPECT_EQ(endpoint->stats().refusedBy(RefusalCause::kUser), 0U);
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

TEST_P(Admission, ALongHeaderTakesNoMemoryBeforeItComes) {
  open();
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  FrameHead head;
  head.sequence = 1;
  head.header_bytes = std::uint32_t{16} << 20;
  FrameHeadBytes bytes{};
  encodeFrameHead(head, bytes.data());
  const std::size_t before = residentBytes();
  client.send(bytes);
  timeForWhatMustNotHappen(milliseconds(100));
  EXPECT_LT(residentBytes(), before + (std::size_t{8} << 20));
  EXPECT_TRUE(recorder.losses().empty());
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
    options.connect_timeout = milliseconds(2000);
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

TEST_P(Admission, ANewLifeIsRefusedAsLongAsTheOldOneLives) {
  open([](EndpointOptions& options) { options.accept_unknown_peers = true; });
  std::optional<RawClient> old_life(*endpoint);
  ASSERT_TRUE(old_life->join(peer(), 0, "worker0"));
  Identity again = peer();
  again.incarnation = 99;
  RawClient too_early(*endpoint);
  EXPECT_FALSE(too_early.join(again, 0, "worker0"));
  EXPECT_EQ(too_early.refusal, RefusalCode::kDuplicate);
  old_life->send(frameOf("first", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_TRUE(recorder.losses().empty());
  // A dead one is replaced at once.
  old_life.reset();
  RawClient new_life(*endpoint);
  ASSERT_TRUE(new_life.join(again, 0, "worker0"));
  ASSERT_TRUE(recorder.waitForLosses(1));
  ASSERT_TRUE(recorder.waitForJoined(1));
  new_life.send(frameOf("second", 1));
  ASSERT_TRUE(recorder.waitForMessages(2));
}

TEST_P(Admission, ASilentLifeIsReplacedAndToldWhenItComesBack) {
  open([](EndpointOptions& options) {
    options.accept_unknown_peers = true;
    options.heartbeat_interval = milliseconds(20);
  });
  RawClient old_life(*endpoint);
  old_life.claim.own = 5;
  ASSERT_TRUE(old_life.join(peer(), 0, "worker0"));
  Identity again = peer();
  again.incarnation = 99;
  // It is refused until the old life has been silent for some heartbeats.
  std::optional<RawClient> new_life;
  ASSERT_TRUE(eventually([&] { return new_life.emplace(*endpoint).join(again, 0, "worker0"); }));
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_TRUE(old_life.ended());
  RawClient back(*endpoint);
  back.claim = {5, 77, 0, 2, 0};  // it goes on with the session that it had
  EXPECT_FALSE(back.join(peer(), 0, "worker0"));
  EXPECT_EQ(back.refusal, RefusalCode::kDisplaced);
}

// What the loop thread answers cannot wait for room.
TEST_P(Admission, OneThatAsksOnAndReadsNothingIsCutOff) {
  recorder.keep = false;
  recorder.react = [this](const Recorder::Received& got) {
    static_cast<void>(endpoint->send(got.from, textMessage(std::string(1000, 'n'))));
  };
  open([](EndpointOptions& options) { options.limits.max_queued_bytes = 40'000; });
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  constexpr std::uint64_t kQuestions = 60'000;  // their answers fill every socket's buffers
  std::vector<std::byte> questions;
  for (std::uint64_t i = 1; i <= kQuestions; ++i) {
    const std::vector<std::byte> question = frameOf("?", i);
    questions.insert(questions.end(), question.begin(), question.end());
  }
  client.send(questions);
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].reason.code(), ErrorCode::kLimitExceeded);
  EXPECT_NE(recorder.losses()[0].reason.text().find("it does not read"), std::string::npos);
}

TEST_P(Admission, AMessageBeyondTheLimitIsPassedOverWhereThatIsAskedFor) {
  open([](EndpointOptions& options) {
    options.limits.max_message_bytes = 1000;
    options.limits.skip_too_large = true;
  });
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  FrameHead head;
  head.sequence = 1;
  head.header_bytes = 5;
  head.buffer_count = 1;
  head.buffer_bytes = 5'000'000;
  std::vector<std::byte> bytes(FrameHead::kBytes + 8 + 5 + head.buffer_bytes);
  encodeFrameHead(head, bytes.data());
  storeLittle<std::uint64_t>(bytes.data() + FrameHead::kBytes, head.buffer_bytes);
  std::memcpy(bytes.data() + FrameHead::kBytes + 8, "large", 5);
  const std::size_t before = residentBytes();
  client.send(bytes);
  client.send(frameOf("small", 2));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_EQ(recorder.messages()[0].header, "small");
  ASSERT_EQ(recorder.tooLarge().size(), 1U);
  EXPECT_EQ(recorder.tooLarge()[0].first, "large");
  EXPECT_NE(recorder.tooLarge()[0].second.text().find("max_message_bytes"), std::string::npos);
  EXPECT_EQ(recorder.tooLarge()[0].second.code(), ErrorCode::kLimitExceeded);
  // The client, which is in this process, writes in blocks that it frees.
  if (!kFreedMemoryStays) {
    EXPECT_LT(residentBytes(), before + (std::size_t{4} << 20));
  }
  EXPECT_TRUE(recorder.losses().empty());
}

TEST_P(Admission, AHandlerThatThrowsWhenAPeerJoinsKeepsThePeer) {
  const LoggedErrors errors;
  recorder.react_to_news = [] { throw std::runtime_error("an application's own"); };
  open([](EndpointOptions& options) { options.accept_unknown_peers = true; });
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(7), 0, "worker0"));
  client.send(frameOf("new here", 1));
  ASSERT_TRUE(recorder.waitForMessages(1));
  EXPECT_EQ(recorder.joined().size(), 1U);
  expectOk(endpoint->send(7, textMessage("welcome")));
  EXPECT_EQ(client.receive(FrameHead::kBytes + 7).size(), FrameHead::kBytes + 7);
  EXPECT_NE(errors.text().find("an application's own"), std::string::npos) << errors.text();
}

TEST_P(Admission, AHandlerThatThrowsAtAMessageBeyondTheLimitLosesThatPeerOnly) {
  recorder.react_to_too_large = [] { throw std::runtime_error("an application's own"); };
  open([](EndpointOptions& options) {
    options.limits.max_message_bytes = 1000;
    options.limits.skip_too_large = true;
    options.accept_unknown_peers = true;
  });
  RawClient other(*endpoint);
  ASSERT_TRUE(other.join(peer(2), 0, "worker0"));
  RawClient client(*endpoint);
  ASSERT_TRUE(client.join(peer(), 0, "worker0"));
  FrameHead head;
  head.sequence = 1;
  head.header_bytes = 5;
  head.buffer_count = 1;
  head.buffer_bytes = 5000;
  std::vector<std::byte> bytes(FrameHead::kBytes + 8 + 5 + head.buffer_bytes);
  encodeFrameHead(head, bytes.data());
  storeLittle<std::uint64_t>(bytes.data() + FrameHead::kBytes, head.buffer_bytes);
  client.send(bytes);
  ASSERT_TRUE(recorder.waitForLosses(1));
  EXPECT_EQ(recorder.losses()[0].rank, 1);
  EXPECT_NE(recorder.losses()[0].reason.text().find("could not be taken (an application's own)"),
            std::string::npos)
      << recorder.losses()[0].reason.text();
  other.send(frameOf("small", 1));
  EXPECT_TRUE(recorder.waitForMessages(1));
}

}  // namespace
}  // namespace weft::transport
