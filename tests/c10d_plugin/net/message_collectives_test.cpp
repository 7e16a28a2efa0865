// Collectives by messages: beside the model, and when ranks disagree, come late, or die.
#include "c10d_plugin/net/messages/message_collectives.h"

#include "tests/c10d_plugin/net/collectives_model.h"
#include "tests/c10d_plugin/net/letters.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

class MessageRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MessageRanks, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(MessageRanks, DoWhatTheModelDoes) {
  const int size = GetParam();
  runRanks(size, [size](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box =
        joinAs(rank, size, store, [](MailboxOptions& options) { options.unix_socket = false; });
    MessageCollectives collectives(box);
    Checker(collectives).everything();
  });
}

TEST(MessageCollectives, NineRanksReduce) {
  runRanks(9, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 9, store);
    MessageCollectives collectives(box);
    Checker checker(collectives);
    checker.barrier();
    for (const std::size_t count : {0, 1, 1000, 2000, 100'000}) {
      checker.allReduce(Element::kFloat32, Reduction::kSum, count);
      checker.allReduce(Element::kFloat16, Reduction::kAverage, count);
      checker.reduce(Element::kInt32, Reduction::kMax, count, 7);
      checker.broadcast(count, 5);
      checker.reduceScatter(Element::kFloat64, Reduction::kSum, count);
    }
  });
}

TEST(MessageCollectives, WorksAmongSomeRanksBesideOthers) {
  runRanks(5, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 5, store);
    // Two groups over the same mailbox, one in another order.
    MessageCollectives half(box, rank % 2 == 0 ? std::vector<int>{4, 0, 2} : std::vector<int>{1, 3},
                            1);
    MessageCollectives all(box, {0, 1, 2, 3, 4}, 2);
    Checker of_half(half);
    Checker of_all(all);
    for (int i = 0; i < 5; ++i) {
      of_half.allGather(1000);
      of_all.allReduce(Element::kFloat32, Reduction::kSum, 50'000);
      of_half.allReduce(Element::kInt32, Reduction::kMax, 100);
      of_all.broadcast(777, i);
    }
  });
}

Call callOf(std::uint64_t sequence, milliseconds in = kPatience,
            Element element = Element::kFloat32) {
  return {soon(in), sequence, element, Reduction::kSum};
}

// Every rank's error names rank 2 and what it called.
void expectNamed(const Error& error, const std::string& called) {
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
  EXPECT_TRUE(names(error, "rank 2 called " + called)) << error.text();
}

TEST(MessageCollectives, AnotherOperationSizeElementOrRootIsNamedOnAllRanks) {
  using Run = std::function<Error(Collectives&)>;
  std::vector<std::byte> data(4000);
  const Run sum = [&](Collectives& c) { return c.allReduce(callOf(0), data); };
  const Run cast = [&](Collectives& c) { return c.broadcast(callOf(0), data, 2); };
  struct Case {
    Run theirs;
    Run ours;
    std::string called;
  };
  const std::vector<Case> cases{
      {[&](Collectives& c) { return c.allReduce(callOf(0, kPatience, Element::kInt32), data); },
       sum, "all_reduce of 4000 bytes of int32"},
      {[&](Collectives& c) { return c.reduceScatter(callOf(0), std::vector<ConstBytes>(3), {}); },
       sum, "reduce_scatter"},
      {[&](Collectives& c) { return c.broadcast(callOf(0), Bytes(data).first(400), 2); }, cast,
       "broadcast of 400 bytes"},
  };
  for (const Case& one : cases) {
    runRanks(3, [&](int rank, KeyValue& store) {
      const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
      MessageCollectives collectives(box);
      const Error error = (rank == 2 ? one.theirs : one.ours)(collectives);
      if (rank != 2 || error) expectNamed(error, one.called);
      meet(store, rank, 3, "end");
      // No rank can go on as if nothing had been.
      EXPECT_TRUE(collectives.barrier(callOf(7)));
      meet(store, rank, 3, "later");
    });
  }
}

// All ranks' parts are as large in all, and each gets as much as it expects at first.
TEST(MessageCollectives, PartsOfOtherSizesInAReduceScatterAreFoundOnAllRanks) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  runRanks(3, [&](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    MessageCollectives collectives(box);
    const std::vector<std::byte> data(5 * kMiB);
    const bool other = rank == 2;
    std::vector<std::byte> out(rank == 0 ? 2 * kMiB : other ? kMiB : 4 * kMiB);
    const std::vector<ConstBytes> in{ConstBytes(data).first((other ? 4 : 2) * kMiB),
                                     ConstBytes(data).first((other ? 2 : 4) * kMiB),
                                     ConstBytes(data).first(kMiB)};
    const Error error = collectives.reduceScatter(callOf(0), in, out);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    EXPECT_TRUE(names(error, "with parts of other sizes")) << error.text();
    meet(store, rank, 3, "end");
  });
}

TEST(MessageCollectives, AnOwnPartOfAnotherSizeInAnAllToAllIsAnError) {
  runRanks(2, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 2, store);
    MessageCollectives collectives(box);
    const std::vector<std::byte> data(8);
    std::vector<std::byte> room(16);
    std::vector<Bytes> out(2, Bytes(room).first(8));
    out[static_cast<std::size_t>(rank)] = room;
    const Error error = collectives.allToAll(callOf(0), std::vector<ConstBytes>(2, data), out);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    EXPECT_TRUE(names(error, "own input: 16 where 8 are needed")) << error.text();
    EXPECT_FALSE(collectives.barrier(callOf(1)));  // nothing has been sent
    meet(store, rank, 2, "end");
  });
}

// A root receives nothing, so its own call does not show that another rank is a root as well.
TEST(MessageCollectives, AnotherRootIsAnErrorOnAllRanks) {
  const std::vector<std::vector<int>> cases{{0, 1, 2}, {0, 0, 2}};
  for (const std::vector<int>& roots : cases) {
    for (const bool announced : {false, true}) {
      for (const bool scatters : {false, true}) {
        runRanks(3, [&](int rank, KeyValue& store) {
          const std::shared_ptr<EndpointMailbox> box =
              joinAs(rank, 3, store, [&](MailboxOptions& options) {
                if (announced) options.eager_bytes_same_host = 64;
              });
          MessageCollectives collectives(box);
          std::vector<std::byte> data(400);
          const int root = roots[static_cast<std::size_t>(rank)];
          const std::vector<ConstBytes> in(root == rank ? 3 : 0, Bytes(data).first(100));
          Error error = scatters ? collectives.scatter(callOf(0), in, Bytes(data).last(100), root)
                                 : collectives.broadcast(callOf(0), data, root);
          // Whose part was over may learn of it in the next operation.
          if (!error) error = collectives.barrier(callOf(1));
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
          EXPECT_TRUE(names(error, "the ranks called different operations")) << error.text();
          meet(store, rank, 3, "end");
        });
      }
    }
  }
}

// Ranks that are ahead send what the others do not wait for yet.
TEST(MessageCollectives, ARankMayBeFarAhead) {
  runRanks(3, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    MessageCollectives first(box, {0, 1, 2}, 1);
    MessageCollectives second(box, {0, 1, 2}, 2);
    std::vector<std::byte> data(400);
    if (rank == 2) hear(store, "ahead");
    for (std::uint64_t i = 0; i < 100; ++i) {
      EXPECT_FALSE(first.broadcast(callOf(i), data, 0));
      EXPECT_FALSE(second.broadcast(callOf(1000 * i), data, 0));
    }
    if (rank == 0) say(store, "ahead", "");
    EXPECT_FALSE(first.barrier(callOf(100)));
    meet(store, rank, 3, "end");
  });
}

TEST(MessageCollectives, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  runRanks(3, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    MessageCollectives collectives(box);
    meet(store, rank, 3, "joined");
    if (rank != 1) {
      std::vector<std::byte> data(400);
      const Error error = collectives.allReduce(callOf(0, milliseconds(2000)), data);
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
      EXPECT_TRUE(names(error, "rank 1 did not come to all_reduce")) << error.text();
      EXPECT_TRUE(collectives.barrier(callOf(1)));
    }
    meet(store, rank, 3, "end");
  });
}

TEST(MessageCollectives, ADeadRankIsNamedOnAll) {
  for (const std::size_t size : {std::size_t{400}, std::size_t{80'000'000}}) {
    runRanks(4,
             [size](int rank, KeyValue& store) {
               const std::shared_ptr<EndpointMailbox> box = joinAs(
                   rank, 4, store, [](MailboxOptions& options) { options.unix_socket = false; });
               MessageCollectives collectives(box);
               std::vector<std::byte> data(size);
               EXPECT_FALSE(collectives.barrier(callOf(0)));
               if (rank == 3) {
                 std::thread([] {
                   takes(milliseconds(20));
                   die();
                 }).detach();
               }
               Error error;
               for (std::uint64_t i = 1; !error; ++i)
                 error = collectives.allReduce(callOf(i), data);
               if (rank == 3) awaitDeath();
               EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
               EXPECT_TRUE(names(error, "rank 3")) << error.text();
               meet(store, rank, 3, "end");
             },
             {3});
  }
}

// No message can fail there.
TEST(MessageCollectives, AbortEndsAGroupOfOne) {
  runRanks(1, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 1, store);
    MessageCollectives collectives(box);
    std::array<float, 2> in{1, 2}, out{};
    const ConstBytes part = std::as_bytes(std::span(in));
    const Bytes into = std::as_writable_bytes(std::span(out));
    Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
    EXPECT_FALSE(collectives.reduceScatter(call, std::span(&part, 1), into));
    EXPECT_EQ(out, in);
    collectives.abort({ErrorCode::kShutdown, "aborted by hand"});
    for (const Error& error :
         {collectives.barrier(call), collectives.broadcast(call, into, 0),
          collectives.allReduce(call, into), collectives.reduce(call, into, 0),
          collectives.allGather(call, part, std::span(&into, 1)),
          collectives.gather(call, part, std::span(&into, 1), 0),
          collectives.scatter(call, std::span(&part, 1), into, 0),
          collectives.reduceScatter(call, std::span(&part, 1), into),
          collectives.allToAll(call, std::span(&part, 1), std::span(&into, 1))}) {
      EXPECT_EQ(error.code(), ErrorCode::kShutdown);
      EXPECT_EQ(error.text(), "aborted by hand");
    }
  });
}

TEST(MessageCollectives, AbortFreesThoseWhoWait) {
  runRanks(3, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    MessageCollectives collectives(box);
    EXPECT_FALSE(collectives.barrier(callOf(0)));
    if (rank == 0) {
      letOthersBlock(milliseconds(50));
      collectives.abort({ErrorCode::kShutdown, "aborted by hand"});
    } else {
      const Error error = collectives.barrier(callOf(1));
      EXPECT_EQ(error.code(), ErrorCode::kShutdown) << error.text();
      EXPECT_TRUE(names(error, "aborted by hand")) << error.text();
    }
    meet(store, rank, 3, "end");
  });
}

}  // namespace
}  // namespace weft::collectives
