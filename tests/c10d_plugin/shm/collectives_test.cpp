// Every operation in real processes, against the model.
#include <gtest/gtest.h>

#include <random>

#include "tests/c10d_plugin/shm/exercise.h"

namespace weft::collectives::testing {
namespace {

void aroundBorder(Exercise& exercise, std::size_t bytes, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::vector<std::size_t> each(ranks, bytes / ranks);
  const std::vector<std::size_t> counts(ranks, bytes / ranks / 4);
  exercise.allReduce(Element::kFloat32, Reduction::kSum, bytes / 4);
  exercise.reduce(Element::kInt16, Reduction::kMin, bytes / 2, size / 2);
  exercise.broadcast(bytes + 1, size / 2);
  exercise.allGather(each, false);
  exercise.gather(each, size - 1);
  exercise.scatter(each, 0);
  exercise.reduceScatter(Element::kInt32, Reduction::kMax, counts, true);
  exercise.allToAll(std::vector(ranks, each));
}

class EachSize : public ::testing::TestWithParam<int> {};

TEST_P(EachSize, EveryReductionOfEveryElement) {
  EXPECT_EQ(runInProcesses(GetParam(), tiny(),
                           [](Collectives& group) {
                             Exercise exercise(group, 1);
                             for (const Element element : allElements()) {
                               for (const Reduction reduction : allReductions()) {
                                 if (!canReduce(element, reduction)) continue;
                                 for (const std::size_t count : {0, 1, 77, 5'001}) {
                                   exercise.allReduce(element, reduction, count);
                                 }
                                 exercise.reduce(element, reduction, 333, group.size() - 1);
                                 exercise.reduce(element, reduction, 5'003, 0);
                               }
                             }
                             return exercise.failures() == 0 ? 0 : 1;
                           }),
            0);
}

// Just up to, and just above: a cache line, a small slot, a buffer, three buffers.
TEST_P(EachSize, SizesAroundEveryBorder) {
  ShmOptions options;
  options.buffer_bytes = 65'536;
  options.small_bytes = 16'384;
  EXPECT_EQ(runInProcesses(GetParam(), options,
                           [](Collectives& group) {
                             Exercise exercise(group, 2);
                             for (const std::size_t border : {64, 16'384, 65'536, 3 * 65'536}) {
                               aroundBorder(exercise, border, group.size());
                               aroundBorder(exercise, border + 4, group.size());
                             }
                             return exercise.failures() == 0 ? 0 : 1;
                           }),
            0);
}

TEST_P(EachSize, SeveralMegabytes) {
  EXPECT_EQ(runInProcesses(GetParam(), {},
                           [](Collectives& group) {
                             Exercise exercise(group, 4);
                             exercise.allReduce(Element::kFloat32, Reduction::kSum, 700'001);
                             exercise.broadcast(2'500'001, 0);
                             return exercise.failures() == 0 ? 0 : 1;
                           }),
            0);
}

TEST_P(EachSize, RandomSequences) {
  const std::uint64_t seed = std::random_device{}();
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  for (const bool small : {true, false}) {
    const std::size_t most = small ? 40'000 : 400'000;
    const int operations = small ? 200 : 50;
    EXPECT_EQ(runInProcesses(GetParam(), small ? tiny() : ShmOptions{},
                             [&](Collectives& group) {
                               Exercise exercise(group, seed);
                               for (int i = 0; i < operations; ++i)
                                 exercise.anything(most);
                               return exercise.failures() == 0 ? 0 : 1;
                             }),
              0)
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EachSize, ::testing::Values(1, 2, 3, 4, 5));

TEST(Collectives, EightRanksOnFewCores) {
  EXPECT_EQ(runInProcesses(8, {},
                           [](Collectives& group) {
                             Exercise exercise(group, 3);
                             for (int i = 0; i < 40; ++i)
                               exercise.anything(200'000);
                             return exercise.failures() == 0 ? 0 : 1;
                           }),
            0);
}

TEST(Collectives, EveryRankGetsTheSameBits) {
  // Sums of these depend on their order.
  EXPECT_EQ(
      runInProcesses(
          3, {},
          [](Collectives& group) {
            int failures = 0;
            std::uint64_t sequence = 0;
            for (const std::size_t count : {1000, 500'000}) {
              std::vector<float> data(count);
              for (std::size_t i = 0; i < count; ++i) {
                data[i] = std::ldexp(
                    1.0F + 0.3F * static_cast<float>(i % 7),
                    static_cast<int>((i + static_cast<std::size_t>(group.rank()) * 11) % 40) - 20);
              }
              const auto bytes = std::as_writable_bytes(std::span(data));
              const Call sum{in(seconds(30)), sequence++, Element::kFloat32, Reduction::kSum};
              failures += group.allReduce(sum, bytes) ? 1 : 0;
              std::vector<float> first = data;
              const Call copy{in(seconds(30)), sequence++};
              failures +=
                  group.broadcast(copy, std::as_writable_bytes(std::span(first)), 0) ? 1 : 0;
              failures += first == data ? 0 : 1;
            }
            return failures;
          }),
      0);
}

TEST(Collectives, TwoGroupsAtOnce) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  Children children;
  for (int rank = 0; rank < 2; ++rank) {
    children.start([&, rank] {
      FolderStore first_store(first_folder.path());
      FolderStore second_store(second_folder.path());
      auto first = ShmCollectives::join({}, groupKey(), first_store, rank, 2, in(seconds(30)));
      auto second =
          ShmCollectives::join({}, groupKey(), second_store, 1 - rank, 2, in(seconds(30)));
      if (!first.ok() || !second.ok()) return 99;
      int failures = 0;
      std::thread other([&] {
        Exercise exercise(*second.value(), 5);
        for (int i = 0; i < 100; ++i)
          exercise.anything(50'000);
        failures += exercise.failures();
      });
      Exercise exercise(*first.value(), 6);
      for (int i = 0; i < 100; ++i)
        exercise.anything(50'000);
      other.join();
      return failures + exercise.failures() == 0 ? 0 : 1;
    });
  }
  EXPECT_EQ(children.wait(0, seconds(100)), 0);
  EXPECT_EQ(children.wait(1, seconds(100)), 0);
}

}  // namespace
}  // namespace weft::collectives::testing
