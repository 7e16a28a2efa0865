// What a peer that does not keep to the protocol may do to the receives of a mailbox.
#include "c10d_plugin/net/mailbox/mail_receiver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "tests/c10d_plugin/fake_mailbox.h"

namespace weft::collectives {
namespace {

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

TEST_F(MailReceiverTest, AlsoIfTheyWereAnnouncedBeforeTheyAreReceived) {
  announce(1, 7);
  announce(2, 7);
  receive(1);
  receive(2);
  expectCutOff();
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
