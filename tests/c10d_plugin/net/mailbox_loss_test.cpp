// What a mailbox says and does when ranks die, leave, give up or stop reading.

#include "tests/c10d_plugin/net/letters.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

TEST(MailboxLoss, ADeadRankIsNamedToWhoWaitsForItThoughNothingWasExchanged) {
  runRanks(3,
           [](int rank, KeyValue& store) {
             const auto box = joinAs(rank, 3, store);
             if (rank == 2) {
               // Both wait for this rank, which they have never talked to. The connections come
               // first, else they could not know who died.
               meet(store, rank, 3, "posted");
               const auto connected = [&] {
                 const auto peers = box->stats().peers;
                 return peers.size() >= 2 && !peers[0].transport.empty() &&
                        !peers[1].transport.empty();
               };
               EXPECT_TRUE(waitUntil(connected, kPatience)) << "no connections to both others";
               die();
             }
             std::future<Mailbox::Received> waiting = receiving(*box, 2, 1, bufferOf(10));
             std::future<Mailbox::Received> any = receiving(*box, kAnyRank, 2, bufferOf(10));
             std::future<Mailbox::Received> other = receiving(*box, 1 - rank, 3, bufferOf(10));
             meet(store, rank, 3, "posted");
             const Error error = await(std::move(waiting)).error;
             EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
             EXPECT_TRUE(names(error, "rank 2")) << error.text();
             EXPECT_TRUE(names(await(std::move(any)).error, "rank 2"));
             // And so is everything later.
             EXPECT_TRUE(names(await(receiving(*box, 2, 1, bufferOf(10))).error, "rank 2"));
             EXPECT_TRUE(names(await(sending(*box, 2, 1, bufferOf(10))), "rank 2"));
             // The others still talk.
             EXPECT_FALSE(isReady(other));
             meet(store, rank, 2, "known");
             expectOk(await(sending(*box, 1 - rank, 3, bufferOf(10))));
             expectOk(await(std::move(other)).error);
             meet(store, rank, 2, "end");
           },
           {2});
}

TEST(MailboxLoss, AMessageHalfReadAndOnesAnnouncedFailWithTheirSender) {
  runRanks(2,
           [](int rank, KeyValue& store) {
             const auto box = joinAs(rank, 2, store, [](MailboxOptions& options) {
               options.unix_socket = false;
               options.eager_bytes_same_host = 50'000'000;
             });
             if (rank == 1) {
               box->send(0, 1, bufferOf(40'000'000), [](const Error&) {});
               box->send(0, 2, bufferOf(60'000'000), [](const Error&) {});  // announced
               die();
             }
             std::future<Mailbox::Received> gone = receiving(*box, 1, 9, bufferOf(10));
             const Mailbox::Received first = await(receiving(*box, 1, 1, bufferOf(40'000'000)));
             if (first.error) {  // it may have been fast enough
               EXPECT_TRUE(names(first.error, "rank 1")) << first.error.text();
             }
             EXPECT_TRUE(names(await(std::move(gone)).error, "rank 1"));
             const Mailbox::Received second = await(receiving(*box, 1, 2, bufferOf(60'000'000)));
             EXPECT_TRUE(names(second.error, "rank 1")) << second.error.text();
           },
           {1});
}

TEST(MailboxLoss, ARankThatLeavesInOrderLeavesItsMessages) {
  runRanks(3, [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, 3, store);
    if (rank == 1) {
      expectOk(await(sending(*box, 0, 1, bufferOf(100, 1))));
      // Who finds nobody at an address can't know that its rank left in order.
      expectOk(await(sending(*box, 2, 1, bufferOf(100, 1))));
      box->close();
      meet(store, rank, 3, "left");
      meet(store, rank, 3, "end");
      return;
    }
    std::future<Mailbox::Received> any = receiving(*box, kAnyRank, 9, bufferOf(8));
    meet(store, rank, 3, "left");
    if (rank == 0) {
      const OwnedBuffer into = bufferOf(100);
      expectOk(await(receiving(*box, 1, 1, into)).error);
      EXPECT_TRUE(equal(into, bufferOf(100, 1)));
      const Error error = await(receiving(*box, 1, 1, into)).error;
      EXPECT_EQ(error.code(), ErrorCode::kPeerClosed) << error.text();
      EXPECT_TRUE(names(error, "rank 1")) << error.text();
    }
    // A receive from anyone goes on with those who are there.
    expectOk(await(sending(*box, 2 - rank, 9, bufferOf(8, 2))));
    expectOk(await(std::move(any)).error);
    meet(store, rank, 3, "end");
  });
}

TEST(MailboxLoss, AbortFailsWhatWaitsHereAndWhatWaitsForThisRank) {
  runRanks(3, [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, 3, store);
    std::future<Mailbox::Received> own = receiving(*box, (rank + 1) % 3, 1, bufferOf(10));
    std::future<Mailbox::Received> from0 =
        receiving(*box, rank == 0 ? kAnyRank : 0, 2, bufferOf(10));
    std::future<Error> announced = sending(*box, (rank + 2) % 3, 3, bufferOf(300'000'000));
    meet(store, rank, 3, "posted");
    if (rank == 0) {
      box->abort({ErrorCode::kShutdown, "somebody pressed the button"});
      box->abort({ErrorCode::kShutdown, "a later reason"});
      EXPECT_TRUE(names(await(std::move(own)).error, "the button"));
      EXPECT_TRUE(names(await(sending(*box, 1, 1, bufferOf(1))), "the button"));
      EXPECT_TRUE(names(await(receiving(*box, 1, 1, bufferOf(1))).error, "the button"));
      EXPECT_TRUE(names(await(std::move(announced)), "the button"));
    }
    const Error error = await(std::move(from0)).error;
    EXPECT_EQ(error.code(), ErrorCode::kShutdown) << error.text();
    EXPECT_TRUE(names(error, "the button")) << error.text();
    if (rank != 0) {
      EXPECT_TRUE(names(error, "rank 0")) << error.text();
    }
    meet(store, rank, 3, "end");
  });
}

// After abort() the completions of half-sent and half-read messages come, so that whoever owns the
// memory may go.
TEST(MailboxLoss, AbortGivesTheMemoryOfHalfDoneMessagesBack) {
  runRanks(2,
           [](int rank, KeyValue& store) {
             const auto box = joinAs(rank, 2, store, [](MailboxOptions& options) {
               options.unix_socket = false;
               options.eager_bytes = 500'000'000;
             });
             if (rank == 1) {
               // Sends a little of a large message, and reads nothing.
               box->send(0, 1, bufferOf(100'000'000), [](const Error&) {});
               stop(store);
             }
             hear(store, "stopped");
             std::vector<std::byte> raw(100'000'000);
             std::future<Mailbox::Received> in =
                 receiving(*box, 1, 1, {raw.data(), raw.size(), nullptr});
             std::future<Error> out = sending(*box, 1, 2, {raw.data(), raw.size(), nullptr});
             letOthersBlock(milliseconds(50));
             box->abort({ErrorCode::kTimeout, "enough"});
             const Mailbox::Received received = await(std::move(in), milliseconds(3000));
             if (received.error) {
               EXPECT_TRUE(names(received.error, "enough")) << received.error.text();
             }
             const Error error = await(std::move(out), milliseconds(3000));
             EXPECT_TRUE(names(error, "enough")) << error.text();
             raw.clear();
             raw.shrink_to_fit();
             killStopped(store);
           },
           {1});
}

TEST(MailboxLoss, AStoppedRankIsLostAfterThePeerTimeout) {
  runRanks(2,
           [](int rank, KeyValue& store) {
             const auto box = joinAs(rank, 2, store, [](MailboxOptions& options) {
               options.heartbeat_interval = milliseconds(100);
               options.peer_timeout = milliseconds(3000);
             });
             std::future<Mailbox::Received> waiting = receiving(*box, 1 - rank, 1, bufferOf(8));
             expectOk(await(sending(*box, 1 - rank, 2, bufferOf(8))));
             expectOk(await(receiving(*box, 1 - rank, 2, bufferOf(8))).error);
             if (rank == 1) {
               stop(store);
             }
             const Error error = await(std::move(waiting)).error;
             EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
             EXPECT_TRUE(names(error, "rank 1")) << error.text();
             killStopped(store);
           },
           {1});
}

TEST(MailboxLoss, CloseFailsWhatStillWaits) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, 2, store);
    std::future<Mailbox::Received> waiting = receiving(*box, 1 - rank, 1, bufferOf(8));
    std::future<Error> announced = sending(*box, 1 - rank, 2, bufferOf(300'000'000));
    meet(store, rank, 2, "posted");
    if (rank == 0) {
      box->close();
      EXPECT_EQ(await(std::move(announced)).code(), ErrorCode::kShutdown);
      const Error error = await(std::move(waiting)).error;
      EXPECT_EQ(error.code(), ErrorCode::kShutdown) << error.text();
      EXPECT_EQ(await(sending(*box, 1, 1, bufferOf(8))).code(), ErrorCode::kShutdown);
    } else {
      const Error error = await(std::move(waiting)).error;
      EXPECT_EQ(error.code(), ErrorCode::kPeerClosed) << error.text();
      EXPECT_TRUE(await(std::move(announced)));
    }
    meet(store, rank, 2, "end");
  });
}

TEST(MailboxLoss, OneWithAnotherKeyIsNamedAtTheStart) {
  runRanks(2, [](int rank, KeyValue& store) {
    MailboxOptions options;
    options.rank = rank;
    options.size = 2;
    options.key = transport::AuthKey::fromHex(std::string(64, rank == 0 ? 'a' : 'b')).value();
    const auto joined = EndpointMailbox::join(options, store, soon());
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.error().code(), ErrorCode::kAuthFailed);
    EXPECT_TRUE(
        names(joined.error(), "and rank " + std::to_string(1 - rank) + " have different keys"))
        << joined.error().text();
    meet(store, rank, 2, "end");
  });
}

}  // namespace
}  // namespace weft::collectives
