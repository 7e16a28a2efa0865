// The mailbox between processes: order, tags, sizes, who gets what.
#include <array>
#include <random>

#include "tests/c10d_plugin/net/letters.h"

namespace weft::collectives {
namespace {

enum class Way { kSameHost, kSocket, kTcp };

void along(Way way, MailboxOptions& options) {
  options.unix_socket = way != Way::kTcp;
  options.arena.enabled = way == Way::kSameHost;
}

class Mailboxes : public ::testing::TestWithParam<Way> {
 protected:
  static std::unique_ptr<EndpointMailbox> join(int rank, int size, KeyValue& store,
                                               std::uint64_t window = 0) {
    return joinAs(rank, size, store, [&](MailboxOptions& options) {
      along(GetParam(), options);
      if (window > 0) options.eager_bytes = options.eager_bytes_same_host = window;
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, Mailboxes,
                         ::testing::Values(Way::kSameHost, Way::kSocket, Way::kTcp),
                         [](const auto& way) {
                           return way.param == Way::kSameHost ? "SharedMemory"
                                  : way.param == Way::kSocket ? "Unix"
                                                              : "Tcp";
                         });

// Below and above the arena's threshold, the window, the socket's buffers.
constexpr std::size_t kSizes[] = {0, 1, 63, 4096, 65'537, 1 << 20, (3 << 20) + 5, 40'000'001};

TEST_P(Mailboxes, EverySizeArrivesPostedBeforeOrAfter) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = join(rank, 2, store);
    for (const bool early : {true, false}) {
      Tag tag = early ? 100 : 200;
      for (const std::size_t size : kSizes) {
        ++tag;
        const std::string where = "size" + std::to_string(tag) + "_";
        if (rank == 0) {
          if (early) meet(store, rank, 2, where);
          std::future<Error> sent = sending(*box, 1, tag, bufferOf(size, 7));
          if (!early) meet(store, rank, 2, where);
          expectOk(await(std::move(sent)));
        } else {
          const OwnedBuffer into = bufferOf(size);
          if (!early) meet(store, rank, 2, where);
          std::future<Mailbox::Received> received = receiving(*box, 0, tag, into);
          if (early) meet(store, rank, 2, where);
          const Mailbox::Received what = await(std::move(received));
          expectOk(what.error);
          EXPECT_EQ(what.from, 0);
          EXPECT_EQ(what.size, size);
          EXPECT_TRUE(equal(into, bufferOf(size, 7))) << size;
        }
      }
    }
    meet(store, rank, 2, "end");
  });
}

TEST_P(Mailboxes, OneSenderAndTagKeepTheirOrderTagsDoNotMix) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = join(rank, 2, store, 100'000);
    constexpr int kEach = 300;
    std::mt19937 random(17);
    const auto sizeOf = [](int tag, int i) {
      return static_cast<std::size_t>((i * 7919 + tag * 104'729) % 9000 +
                                      (i % 50 == 0 ? 150'000 : 0));
    };
    if (rank == 0) {
      std::vector<std::future<Error>> sent;
      for (int i = 0; i < kEach; ++i)
        for (const int tag : {1, 2, 3})
          sent.push_back(sending(*box, 1, tag, bufferOf(sizeOf(tag, i), i + tag)));
      for (auto& one : sent)
        expectOk(await(std::move(one)));
    } else {
      // Tag by tag, the last first: what is not wanted yet waits here, or at its sender.
      for (const int tag : {3, 1, 2}) {
        for (int i = 0; i < kEach; ++i) {
          const OwnedBuffer into = bufferOf(sizeOf(tag, i));
          expectOk(await(receiving(*box, 0, tag, into)).error);
          ASSERT_TRUE(equal(into, bufferOf(sizeOf(tag, i), i + tag))) << tag << " " << i;
        }
      }
    }
    meet(store, rank, 2, "end");
  });
}

TEST_P(Mailboxes, AnySourceTakesWhoComesFirstAndOldReceivesGoFirst) {
  runRanks(3, [](int rank, KeyValue& store) {
    const auto box = join(rank, 3, store);
    if (rank == 0) {
      const OwnedBuffer a = bufferOf(8);
      const OwnedBuffer b = bufferOf(8);
      const OwnedBuffer c = bufferOf(8);
      std::future<Mailbox::Received> any = receiving(*box, kAnyRank, 5, a);
      std::future<Mailbox::Received> named = receiving(*box, 1, 5, b);
      meet(store, rank, 3, "posted");
      const Mailbox::Received first = await(std::move(any));
      expectOk(first.error);
      EXPECT_EQ(first.from, 1);  // rank 2 speaks after rank 1 has
      EXPECT_TRUE(equal(a, bufferOf(8, 1)));
      expectOk(await(std::move(named)).error);
      EXPECT_TRUE(equal(b, bufferOf(8, 2)));
      meet(store, rank, 3, "one");
      const Mailbox::Received second = await(receiving(*box, kAnyRank, 5, c));
      EXPECT_EQ(second.from, 2);
      EXPECT_TRUE(equal(c, bufferOf(8, 3)));
    } else {
      meet(store, rank, 3, "posted");
      if (rank == 1) {
        expectOk(await(sending(*box, 0, 5, bufferOf(8, 1))));
        expectOk(await(sending(*box, 0, 5, bufferOf(8, 2))));
      }
      if (rank == 2) {
        meet(store, rank, 3, "one");
        expectOk(await(sending(*box, 0, 5, bufferOf(8, 3))));
      } else {
        meet(store, rank, 3, "one");
      }
    }
    meet(store, rank, 3, "end");
  });
}

TEST_P(Mailboxes, AllToAllAtOnce) {
  constexpr int kSize = 4;
  runRanks(kSize, [](int rank, KeyValue& store) {
    const auto box = join(rank, kSize, store);
    std::vector<OwnedBuffer> into;
    std::vector<std::future<Mailbox::Received>> received;
    std::vector<std::future<Error>> sent;
    for (int round = 0; round < 20; ++round) {
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer == rank) continue;
        const std::size_t size = static_cast<std::size_t>(round * round) * 700;
        into.push_back(bufferOf(size));
        received.push_back(receiving(*box, peer, round, into.back()));
        sent.push_back(sending(*box, peer, round, bufferOf(size, rank * 100 + round)));
      }
    }
    for (auto& one : sent)
      expectOk(await(std::move(one)));
    for (std::size_t i = 0; i < received.size(); ++i) {
      const Mailbox::Received what = await(std::move(received[i]));
      expectOk(what.error);
      EXPECT_TRUE(
          equal(into[i], bufferOf(what.size, what.from * 100 + static_cast<int>(i) / (kSize - 1))));
    }
    meet(store, rank, kSize, "end");
  });
}

TEST_P(Mailboxes, ADifferentSizeFailsThatReceiveAndNothingElse) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = join(rank, 2, store, 10'000);
    for (const bool early : {true, false}) {
      for (const std::size_t size : {std::size_t{100}, std::size_t{60'000}}) {
        const std::string where = (early ? "early" : "late") + std::to_string(size) + "_";
        if (rank == 0) {
          if (early) meet(store, rank, 2, where);
          std::future<Error> sent = sending(*box, 1, 9, bufferOf(size, 1));
          std::future<Error> fitting = sending(*box, 1, 9, bufferOf(size, 2));
          if (!early) meet(store, rank, 2, where);
          expectOk(await(std::move(sent)));
          expectOk(await(std::move(fitting)));
        } else {
          if (!early) meet(store, rank, 2, where);
          const OwnedBuffer into = bufferOf(size - 1, 5);
          std::future<Mailbox::Received> bad = receiving(*box, 0, 9, into);
          if (early) meet(store, rank, 2, where);
          const Mailbox::Received what = await(std::move(bad));
          EXPECT_EQ(what.error.code(), ErrorCode::kInvalidArgument);
          EXPECT_TRUE(names(what.error, "rank 0 sent " + std::to_string(size) + " bytes where " +
                                            std::to_string(size - 1)))
              << what.error.text();
          EXPECT_TRUE(equal(into, bufferOf(size - 1, 5)));  // nothing was written
          const OwnedBuffer good = bufferOf(size);
          expectOk(await(receiving(*box, 0, 9, good)).error);
          EXPECT_TRUE(equal(good, bufferOf(size, 2)));
        }
      }
    }
    meet(store, rank, 2, "end");
  });
}

TEST_P(Mailboxes, ADifferentLabelFailsToo) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = join(rank, 2, store);
    const Label ours{{1, 2, 3}};
    const Label theirs{{1, 2, 4}};
    if (rank == 0) {
      expectOk(await(sending(*box, 1, 1, bufferOf(8, 1), theirs)));
      expectOk(await(sending(*box, 1, 1, bufferOf(8, 2), ours)));
    } else {
      const Mailbox::Received what = await(receiving(*box, 0, 1, bufferOf(8), ours));
      EXPECT_EQ(what.error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(what.label, theirs);
      expectOk(await(receiving(*box, 0, 1, bufferOf(8), ours)).error);
    }
    meet(store, rank, 2, "end");
  });
}

TEST_P(Mailboxes, ACancelledReceiveIsNotCalledAndTakesNoMessage) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = join(rank, 2, store);
    if (rank == 0) {
      meet(store, rank, 2, "cancelled");
      expectOk(await(sending(*box, 1, 4, bufferOf(16, 3))));
    } else {
      const Error given_up(ErrorCode::kTimeout, "too late");
      Mailbox::Ticket ticket = 0;
      std::future<Mailbox::Received> first = receiving(*box, 0, 4, bufferOf(16), {}, &ticket);
      EXPECT_TRUE(box->cancel(ticket, given_up));
      EXPECT_FALSE(box->cancel(ticket, given_up));
      meet(store, rank, 2, "cancelled");
      const OwnedBuffer into = bufferOf(16);
      expectOk(await(receiving(*box, 0, 4, into)).error);
      EXPECT_TRUE(equal(into, bufferOf(16, 3)));
    }
    meet(store, rank, 2, "end");
  });
}

// A message that is taken back never arrives. A receive that was posted while it was announced
// fails; one posted later gets the next message.
TEST_P(Mailboxes, AMessageThatIsTakenBackDoesNotArrive) {
  runRanks(2, [](int rank, KeyValue& store) {
    constexpr std::size_t kSize = 200'000;
    const auto box = join(rank, 2, store, 1 << 10);  // everything is announced
    if (rank == 0) {
      Mailbox::Ticket ticket = 0;
      OwnedBuffer data = bufferOf(kSize, 1);
      std::future<Error> first = sending(*box, 1, 4, data, {}, &ticket);
      ASSERT_NE(ticket, 0U);
      EXPECT_TRUE(box->cancel(ticket, {ErrorCode::kTimeout, "too late"}));
      EXPECT_FALSE(box->cancel(ticket, {ErrorCode::kTimeout, "too late"}));
      std::memset(data.data, 0, data.size);
      meet(store, rank, 2, "taken back");
      expectOk(await(sending(*box, 1, 4, bufferOf(kSize, 2))));
    } else {
      meet(store, rank, 2, "taken back");
      const OwnedBuffer into = bufferOf(kSize);
      Error error = await(receiving(*box, 0, 4, into)).error;
      if (error) {
        EXPECT_TRUE(names(error, "rank 0 cancelled its send: too late"));
        error = await(receiving(*box, 0, 4, into)).error;
      }
      expectOk(error);
      EXPECT_TRUE(equal(into, bufferOf(kSize, 2)));
    }
    meet(store, rank, 2, "end");
  });
}

TEST_P(Mailboxes, AReceiveEndsWithTheMessageThatIsTakenBack) {
  runRanks(2, [](int rank, KeyValue& store) {
    constexpr int kTries = 50;
    constexpr std::size_t kSize = 200'000;
    const auto box = join(rank, 2, store, 1 << 10);
    for (int i = 0; i < kTries; ++i) {
      meet(store, rank, 2, "try" + std::to_string(i));
      if (rank == 0) {
        Mailbox::Ticket ticket = 0;
        OwnedBuffer data = bufferOf(kSize, 1);
        std::future<Error> sent = sending(*box, 1, i, data, {}, &ticket);
        if (box->cancel(ticket, {ErrorCode::kTimeout, "too late"})) {
          std::memset(data.data, 0, data.size);
          // For a receive that never saw the first one.
          expectOk(await(sending(*box, 1, 1000 + i, bufferOf(kSize, 1))));
        } else {
          expectOk(await(std::move(sent)));
          expectOk(await(sending(*box, 1, 1000 + i, bufferOf(kSize, 1))));
        }
      } else {
        Mailbox::Ticket ticket = 0;
        const OwnedBuffer into = bufferOf(kSize);
        const OwnedBuffer next = bufferOf(kSize);
        std::future<Mailbox::Received> first = receiving(*box, 0, i, into, {}, &ticket);
        expectOk(await(receiving(*box, 0, 1000 + i, next)).error);
        EXPECT_TRUE(equal(next, bufferOf(kSize, 1)));
        if (box->cancel(ticket, {ErrorCode::kTimeout, "too late"})) continue;
        const Mailbox::Received what = await(std::move(first));
        if (what.error) {
          EXPECT_TRUE(names(what.error, "rank 0 cancelled its send: too late"));
        } else {
          EXPECT_TRUE(equal(into, bufferOf(kSize, 1)));
        }
      }
    }
    meet(store, rank, 2, "end");
  });
}

// A sender that floods fills its window at the receiver; the rest stays with it.
TEST_P(Mailboxes, AFloodWaitsAtItsSender) {
  runRanks(2, [](int rank, KeyValue& store) {
    constexpr int kCount = 2000;
    constexpr std::size_t kEach = 20'000;
    const auto box = join(rank, 2, store, 1 << 20);
    if (rank == 0) {
      std::vector<std::future<Error>> sent;
      for (int i = 0; i < kCount; ++i)
        sent.push_back(sending(*box, 1, i, bufferOf(kEach, i)));
      meet(store, rank, 2, "sent");
      EXPECT_FALSE(isReady(sent.back()));
      meet(store, rank, 2, "looked");
      for (auto& one : sent)
        expectOk(await(std::move(one)));
    } else {
      meet(store, rank, 2, "sent");
      // What came is announcements, and a window of bytes.
      EXPECT_LT(box->stats().peers[0].bytes_received, (1U << 20) + kCount * 200U);
      meet(store, rank, 2, "looked");
      for (int i = kCount - 1; i >= 0; --i) {
        const OwnedBuffer into = bufferOf(kEach);
        expectOk(await(receiving(*box, 0, i, into)).error);
        ASSERT_TRUE(equal(into, bufferOf(kEach, i))) << i;
      }
    }
    meet(store, rank, 2, "end");
  });
}

// The group of one has no endpoint.
class OwnMessages : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, OwnMessages, testing::Values(1, 2));

TEST_P(OwnMessages, GoToReceivesAsOthersDo) {
  runRanks(GetParam(), [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, GetParam(), store);
    const std::array<OwnedBuffer, 3> into{bufferOf(100), bufferOf(100), bufferOf(100'000)};
    std::future<Mailbox::Received> first = receiving(*box, rank, 1, into[0]);
    std::future<Error> sent = sending(*box, rank, 1, bufferOf(100, 1));
    expectOk(await(std::move(first)).error);
    expectOk(await(std::move(sent)));
    // These wait for their receives, which come in another order of tags.
    std::future<Error> small = sending(*box, rank, 2, bufferOf(100, 2));
    std::future<Error> large = sending(*box, rank, 3, bufferOf(100'000, 3));
    EXPECT_FALSE(isReady(small) || isReady(large));
    const Mailbox::Received any = await(receiving(*box, kAnyRank, 3, into[2]));
    expectOk(any.error);
    EXPECT_EQ(any.from, rank);
    expectOk(await(std::move(large)));
    expectOk(await(receiving(*box, rank, 2, into[1])).error);
    expectOk(await(std::move(small)));
    EXPECT_TRUE(equal(into[0], bufferOf(100, 1)) && equal(into[1], bufferOf(100, 2)) &&
                equal(into[2], bufferOf(100'000, 3)));
    meet(store, rank, GetParam(), "end");
  });
}

TEST_P(OwnMessages, OfAnotherSizeFailTheReceiveAndMayBeTakenBack) {
  runRanks(GetParam(), [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, GetParam(), store);
    std::future<Error> sent = sending(*box, rank, 1, bufferOf(8));
    const Error error = await(receiving(*box, rank, 1, bufferOf(9))).error;
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(names(error, "sent 8 bytes where 9 were expected")) << error.text();
    expectOk(await(std::move(sent)));
    Mailbox::Ticket ticket = 0;
    std::future<Error> taken_back = sending(*box, rank, 1, bufferOf(8, 1), {}, &ticket);
    EXPECT_TRUE(box->cancel(ticket, {ErrorCode::kTimeout, "late"}));
    std::future<Error> next = sending(*box, rank, 1, bufferOf(8, 2));
    const OwnedBuffer into = bufferOf(8);
    expectOk(await(receiving(*box, rank, 1, into)).error);
    EXPECT_TRUE(equal(into, bufferOf(8, 2)));
    expectOk(await(std::move(next)));
    meet(store, rank, GetParam(), "end");
  });
}

TEST_P(OwnMessages, FailWithTheGroup) {
  runRanks(GetParam(), [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, GetParam(), store);
    std::future<Error> sent = sending(*box, rank, 1, bufferOf(8));
    std::future<Mailbox::Received> awaited = receiving(*box, rank, 2, bufferOf(8));
    meet(store, rank, GetParam(), "posted");
    box->abort({ErrorCode::kShutdown, "enough"});
    EXPECT_TRUE(names(await(std::move(sent)), "enough"));
    EXPECT_TRUE(names(await(std::move(awaited)).error, "enough"));
    EXPECT_TRUE(names(await(sending(*box, rank, 1, bufferOf(8))), "enough"));
    meet(store, rank, GetParam(), "end");
  });
}

TEST(Mailbox, SaysWhoDidNotCome) {
  runRanks(1, [](int, KeyValue& store) {
    MailboxOptions options;
    options.size = 3;
    const auto joined = EndpointMailbox::join(options, store, soon(std::chrono::milliseconds(50)));
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.error().code(), ErrorCode::kTimeout);
    EXPECT_TRUE(names(joined.error(), "ranks 1, 2")) << joined.error().text();
  });
}

TEST(Mailbox, KnowsWhoSharesItsHost) {
  runRanks(2, [](int rank, KeyValue& store) {
    const auto box = joinAs(rank, 2, store);
    ASSERT_EQ(box->hosts().size(), 2U);
    EXPECT_FALSE(box->hosts()[0].empty());
    EXPECT_EQ(box->hosts()[0], box->hosts()[1]);
    EXPECT_EQ(box->sharing(), box->hosts());
    meet(store, rank, 2, "end");
  });
}

}  // namespace
}  // namespace weft::collectives
