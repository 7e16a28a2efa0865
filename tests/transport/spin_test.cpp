#include "transport/base/spin.h"

#include <gtest/gtest.h>

namespace weft::transport {
namespace {

// Whether it polls at all for what never comes.
bool polls(AdaptiveSpin& spin) {
  bool looked = false;
  EXPECT_FALSE(spin.until([&] {
    looked = true;
    return false;
  }));
  return looked;
}

// How many waits it takes until one polls, that one included.
int waitsToNextPoll(AdaptiveSpin& spin) {
  constexpr int kMost = 5000;
  for (int waits = 1; waits <= kMost; ++waits)
    if (polls(spin)) return waits;
  ADD_FAILURE() << "it has not polled in " << kMost << " waits";
  return kMost;
}

void pollInVain(AdaptiveSpin& spin) {
  while (polls(spin)) {
  }
}

class AdaptiveSpinTest : public testing::Test {
  void SetUp() override {
    if (std::thread::hardware_concurrency() == 1) GTEST_SKIP() << "it never polls on one core";
  }
};

TEST_F(AdaptiveSpinTest, FindsWhatIsThere) {
  AdaptiveSpin spin;
  EXPECT_TRUE(spin.until([] { return true; }));
}

TEST_F(AdaptiveSpinTest, StopsPollingInVainAndTriesAgain) {
  AdaptiveSpin spin;
  pollInVain(spin);
  EXPECT_GT(waitsToNextPoll(spin), 10);
}

TEST_F(AdaptiveSpinTest, OneFindBringsPollingBack) {
  AdaptiveSpin spin;
  pollInVain(spin);
  bool found = false;
  for (int waits = 0; waits < 5000 && !found; ++waits)
    found = spin.until([] { return true; });
  ASSERT_TRUE(found);
  EXPECT_TRUE(polls(spin));
}

}  // namespace
}  // namespace weft::transport
