// What a peer that does not keep to the protocol may do to the receives of a mailbox.
#include "c10d_plugin/net/mailbox/mail_receiver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

#include "tests/c10d_plugin/fake_mailbox.h"

namespace weft::collectives {
namespace {

using transport::Error;
using transport::ErrorCode;

struct MailReceiverTest : ::testing::Test {
  MailReceiverTest() { state.endpoint.reset(endpoint); }

  // How the receive ends is at its index in `ended`.
  void receive(Tag tag) {
    const std::size_t index = ended.size();
    ended.emplace_back();
    receiver.receive(1, tag, {memory.data(), memory.size(), nullptr},
                     [this, index](const Mailbox::Received& how) {
                       EXPECT_FALSE(ended[index].has_value());
                       ended[index] = how.error.code();
                     },
                     {});
  }
  void announce(Tag tag, std::uint64_t id) {
    receiver.rendezvous().onRequestToSend(
        1, {MailKind::kRequestToSend, tag, id, memory.size(), {}, {}});
  }
  // The second of two is over, its sender is cut off, and the first one ends with that.
  void expectCutOff() {
    ASSERT_EQ(endpoint->lost.size(), 1U);
    EXPECT_EQ(endpoint->lost[0].first, 1);
    EXPECT_EQ(ended[1], ErrorCode::kProtocol);
    EXPECT_FALSE(ended[0].has_value());
    EXPECT_EQ(receiver.takeFrom(1).size(), 1U);
  }

  MailboxState state{0, FakeEndpoint::kRanks};
  FakeEndpoint* const endpoint = new FakeEndpoint;
  MailReceiver receiver{state};
  std::vector<std::byte> memory = std::vector<std::byte>(8);
  std::vector<std::optional<ErrorCode>> ended;
};

TEST_F(MailReceiverTest, TwoMessagesAnnouncedAsOneCutTheirSenderOff) {
  receive(1);
  receive(2);
  announce(1, 7);
  announce(2, 7);
  expectCutOff();
}

TEST_F(MailReceiverTest, AlsoIfOneWasAnnouncedBeforeItIsReceived) {
  announce(1, 7);
  receive(2);
  announce(2, 7);
  receive(1);
  ASSERT_EQ(endpoint->lost.size(), 1U);
  EXPECT_EQ(endpoint->lost[0].first, 1);
  EXPECT_EQ(ended[1], ErrorCode::kProtocol);
}

TEST_F(MailReceiverTest, AlsoIfNobodyReceivesThem) {
  announce(1, 7);
  announce(2, 7);
  ASSERT_EQ(endpoint->lost.size(), 1U);
  EXPECT_EQ(endpoint->lost[0].first, 1);
}

// It told its other requests' ends when it gave up, and a message of it would have none.
TEST(Mailboxes, WhatComesOfARankThatGaveUpIsDropped) {
  FakeMailbox box(4096);
  transport::EndpointHandler& handler = box.handler();
  std::vector<transport::OwnedBuffer> buffers;
  const auto abort = encode({MailKind::kAbort, 0, 0, 0, {}, "enough"});
  EXPECT_EQ(handler.onHeader(1, abort, {}, buffers), transport::Disposition::kAccept);
  handler.onMessage(1, abort, {});
  const std::uint64_t size = 8;
  buffers.resize(1);
  EXPECT_EQ(
      handler.onHeader(1, encode({MailKind::kEager, 3, 0, size, {}, {}}), {&size, 1}, buffers),
      transport::Disposition::kDiscard);
  handler.onPeerLost({1, "worker1", {ErrorCode::kPeerLost, "killed"}});
  std::vector<std::byte> memory(size);
  int ended = 0;
  box->receive(1, 3, {memory.data(), size, nullptr},
               [&](const Mailbox::Received& how) { ended += how.error ? 1 : 100; });
  EXPECT_EQ(ended, 1);
}

// The ranks that heard of an abort, in the order of the telling.
std::vector<int> toldOfAbort(FakeMailbox& box) {
  std::vector<int> told;
  for (const auto& [to, header] : box.endpoint().headers) {
    if (decode(header)->kind == MailKind::kAbort) told.push_back(to);
  }
  return told;
}

// It may close before its loop thread has come to tell of the abort.
TEST(Mailboxes, AnAbortIsToldBeforeTheGoodbye) {
  FakeMailbox box(4096);
  box->receive(1, 3, {}, [](const Mailbox::Received&) {});
  // The other one has connected, and its first message has not come.
  box.endpoint().figures.peers = {{.rank = 2, .name = "worker2", .transport = "unix"}};
  box->abort({ErrorCode::kShutdown, "somebody pressed the button"});
  box->close();
  EXPECT_EQ(toldOfAbort(box), (std::vector<int>{1, 2}));
  for (const auto& task : box.endpoint().tasks)
    task();
  box->close();
  EXPECT_EQ(toldOfAbort(box).size(), 2U);
}

// It may close while its loop thread is telling of the abort, which then comes too late.
TEST(Mailboxes, AnAbortThatIsBeingToldIsToldBeforeTheGoodbye) {
  FakeMailbox box(4096);
  box->receive(1, 3, {}, [](const Mailbox::Received&) {});
  box->abort({ErrorCode::kShutdown, "somebody pressed the button"});
  box.endpoint().headers.clear();
  box.endpoint().before_send = [&] { box->close(); };
  box.endpoint().tasks.front()();
  EXPECT_TRUE(box.endpoint().closed);
  EXPECT_EQ(toldOfAbort(box), std::vector<int>{1});
}

// A sender may be on its way to the endpoint while its peer gives up and leaves.
TEST(Mailboxes, ASenderIsToldWhyItsPeerGaveUpBeforeItLeft) {
  FakeMailbox box(4096);
  const auto abort = encode(
      {MailKind::kAbort, 0, static_cast<std::uint64_t>(ErrorCode::kTimeout), 0, {}, "enough"});
  box.endpoint().before_send = [&] {
    box.handler().onMessage(1, abort, {});
    box.endpoint().gone[1] = true;
  };
  Error ended;
  box->send(1, 3, {}, [&](const Error& how) { ended = how; });
  EXPECT_EQ(ended.text(), "rank 1 gave up: enough");
}

TEST(Mailboxes, OneThatClosesInOrderTellsOfNoAbort) {
  FakeMailbox box(4096);
  box->receive(1, 3, {}, [](const Mailbox::Received&) {});
  box->close();
  box->abort({ErrorCode::kShutdown, "too late"});
  box->close();
  EXPECT_EQ(toldOfAbort(box), std::vector<int>());
}

TEST(Mailboxes, ARankThatCannotBeReachedMayHaveLeft) {
  FakeMailbox box(4096);
  Error ended;
  box->receive(1, 3, {}, [&](const Mailbox::Received& how) { ended = how.error; });
  box.handler().onPeerLost({1, "worker1", {ErrorCode::kConnectFailed, "nothing listens there"}});
  EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(ended.text(), "nothing listens there. It may also have left the group");
}

// The tags of a channel's operations.
Mailbox::OpStage stageOf(std::uint64_t number, bool over) {
  const Tag first = kCollectiveTags + (number << 16U);
  return {first, first + 0xFFFF, Label{{1, 2, number}}, over};
}

TEST(Mailboxes, AMessageThatNoOperationTakesEndsTheGroup) {
  for (const bool over : {true, false}) {
    FakeMailbox box(4096);
    transport::EndpointHandler& handler = box.handler();
    const auto come = [&](Tag tag, const Label& label) {
      const std::uint64_t size = 8;
      std::vector<transport::OwnedBuffer> buffers(1);
      const auto header = encode({MailKind::kEager, tag, 0, size, label, {}});
      const auto said = handler.onHeader(1, header, {&size, 1}, buffers);
      if (said == transport::Disposition::kAccept) handler.onMessage(1, header, buffers);
      return said == transport::Disposition::kAccept;
    };
    const Mailbox::OpStage running = stageOf(5, over);
    EXPECT_FALSE(box->reached(running));
    EXPECT_TRUE(come(7, {}));                                                   // a user's
    EXPECT_TRUE(come(stageOf(6, false).first, {}));                             // of a later one
    EXPECT_TRUE(come(stageOf(4, true).first + (Tag{1} << kChannelShift), {}));  // another channel's
    EXPECT_EQ(come(running.last, running.label), !over);
    EXPECT_FALSE(come(running.first, over ? running.label : Label{{3, 2, 5}}));
    ErrorCode ended{};
    box->receive(1, 7, {}, [&](const Mailbox::Received& how) { ended = how.error.code(); });
    EXPECT_EQ(ended, ErrorCode::kInvalidArgument);
  }
}

TEST(Mailboxes, AnOperationFindsTheMessageThatNoOperationTakes) {
  FakeMailbox box(4096);
  const Mailbox::OpStage early = stageOf(4, false);
  for (const Tag tag : {Tag{7}, stageOf(3, false).last, early.first, stageOf(6, false).first}) {
    const auto header = encode({MailKind::kRequestToSend, tag, tag, 8, early.label, {}});
    box.handler().onMessage(1, header, {});
  }
  EXPECT_FALSE(box->reached(stageOf(3, false)).text().empty());  // with another label
  FakeMailbox other(4096);
  const auto header = encode({MailKind::kRequestToSend, early.first, 1, 8, early.label, {}});
  other.handler().onMessage(1, header, {});
  EXPECT_FALSE(other->reached(stageOf(3, true)));
  EXPECT_FALSE(other->reached(early));
  EXPECT_EQ(other->reached(stageOf(4, true)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(other->reached(stageOf(5, false)).code(), ErrorCode::kInvalidArgument);
}

// The numbers of a channel's operations begin again at 0.
TEST(OpProgress, TakesALowNumberAfterTheHighestForALaterOperation) {
  constexpr std::uint64_t kNumbers = std::uint64_t{1} << 40U;
  OpProgress progress;
  progress.note(stageOf(kNumbers - 1, true));
  EXPECT_EQ(progress.whereUnwanted(stageOf(0, false).first, {}), nullptr);
  EXPECT_NE(progress.whereUnwanted(stageOf(kNumbers - 2, false).first, {}), nullptr);
  progress.note(stageOf(0, true));
  EXPECT_EQ(progress.whereUnwanted(stageOf(1, false).first, {}), nullptr);
  EXPECT_NE(progress.whereUnwanted(stageOf(0, false).first, {}), nullptr);
}

// Each may take back what it never announced, on the loop thread.
TEST_F(MailReceiverTest, TakingBackCostsLittleAmongManyAnnouncements) {
  constexpr std::uint64_t kCount = 100'000;
  const auto started = std::chrono::steady_clock::now();
  for (std::uint64_t id = 0; id < kCount; ++id)
    announce(id, 2 * id);
  for (std::uint64_t id = 0; id < kCount; ++id)
    receiver.rendezvous().onSendCancelled(1, {MailKind::kSendCancelled, 0, 2 * id + 1, 0, {}, {}});
  for (std::uint64_t id = 0; id < kCount; id += 2)
    receiver.rendezvous().onSendCancelled(1, {MailKind::kSendCancelled, 0, 2 * id, 0, {}, {}});
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(8));
  EXPECT_EQ(state.peer(1).announcements, kCount / 2);
}

TEST_F(MailReceiverTest, WhatWasTakenBackOrReceivedIsNotFoundAgain) {
  announce(1, 7);
  announce(1, 8);
  receive(1);  // 7
  receiver.rendezvous().onSendCancelled(1, {MailKind::kSendCancelled, 0, 8, 0, {}, {}});
  receiver.rendezvous().onSendCancelled(1, {MailKind::kSendCancelled, 0, 8, 0, {}, {}});
  EXPECT_EQ(state.peer(1).announcements, 0U);
  receive(1);
  EXPECT_FALSE(ended[1].has_value());
  EXPECT_EQ(receiver.takeFrom(1).size(), 2U);
}

}  // namespace
}  // namespace weft::collectives
