// The ranks of a group as threads of one process: what a thread sanitizer can see of it.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/c10d_plugin/shm/exercise.h"

#include "tests/support/waiting.h"

namespace weft::collectives::testing {
namespace {

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, RandomSequences) {
  const std::uint64_t seed = std::random_device{}();
  ShmOptions options;
  options.buffer_bytes = 16384;
  auto made = ShmCollectives::inOneProcess(options, GetParam());
  ASSERT_TRUE(made.ok()) << made.error().text();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (auto& group : made.value()) {
    threads.emplace_back([&] {
      Exercise exercise(*group, seed);
      for (int i = 0; i < 150; ++i)
        exercise.anything(100'000);
      failures += exercise.failures();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(failures.load(), 0) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::Values(1, 2, 3, 5));

TEST(Threads, AbortFromOutsideEndsAWait) {
  auto made = ShmCollectives::inOneProcess({}, 2);
  ASSERT_TRUE(made.ok()) << made.error().text();
  Collectives& first = *made.value()[0];
  Error ended;
  std::thread waits([&] { ended = first.barrier({in(seconds(30)), 0}); });
  letOthersBlock(milliseconds(20));
  first.abort({ErrorCode::kShutdown, "enough"});
  waits.join();
  EXPECT_EQ(ended.code(), ErrorCode::kShutdown);
  EXPECT_NE(ended.text().find("enough"), std::string::npos) << ended.text();
  const Error later = made.value()[1]->barrier({in(seconds(30)), 0});
  EXPECT_EQ(later.code(), ErrorCode::kShutdown);
  EXPECT_EQ(later.text(), ended.text());
}

}  // namespace
}  // namespace weft::collectives::testing
