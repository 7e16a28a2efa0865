// Seats: who moves to another processor, and that it may run where it might before.
#include "c10d_plugin/shm/sync/seats.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace weft::collectives::shm {
namespace {

std::vector<int> allowed() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  return processors;
}

void allow(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors)
    CPU_SET(processor, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(set), &set), 0);
}

class SeatsTest : public ::testing::Test {
 protected:
  SeatsTest() : processors_(allowed()) {}
  ~SeatsTest() override { allow(processors_); }

  void SetUp() override {
    if (processors_.size() < 2) GTEST_SKIP() << "one processor";
    ranks_ = static_cast<int>(2 * processors_.size());
    segment_ = Segment::create(Layout::of(ranks_, 0, 0, 0)).value();
  }
  // Where this thread is after rank `rank` looked once in each of `looks` turns, having said that
  // it runs on the first processor.
  int seatAfter(int rank, int looks) {
    Seats seats(*segment_, rank);
    allow({processors_[0]});
    seats.say();
    allow(processors_);
    for (int look = 0; look < looks; ++look)
      seats.spread(static_cast<std::uint64_t>(look) * 8);
    return ::sched_getcpu();
  }
  void seat(int rank, int processor) {
    segment_->control(rank).processor.store(static_cast<std::uint32_t>(processor));
  }

  const std::vector<int> processors_;
  int ranks_ = 0;
  std::shared_ptr<Segment> segment_;
};

TEST_F(SeatsTest, EachRankOfACrowdMovesWhenItsTurnComes) {
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int other = 0; other < ranks_; ++other)
      seat(other, processors_[0]);
    // The system may move the thread as well, at any time: one of several tries is as expected.
    bool moved = false;
    for (int tries = 0; tries < 20 && !moved; ++tries)
      moved = seatAfter(rank, ranks_) != processors_[0];
    EXPECT_TRUE(moved) << "rank " << rank;
    EXPECT_EQ(allowed(), processors_);
  }
}

TEST_F(SeatsTest, OneAtATimeMoves) {
  for (int other = 0; other < ranks_; ++other)
    seat(other, processors_[0]);
  // In the first turn it is rank 0's, so the last rank stays.
  bool stayed = false;
  for (int tries = 0; tries < 20 && !stayed; ++tries)
    stayed = seatAfter(ranks_ - 1, 1) == processors_[0];
  EXPECT_TRUE(stayed);
}

TEST_F(SeatsTest, WhoseProcessorHasItsShareStays) {
  for (int other = 0; other < ranks_; ++other)
    seat(other, processors_[static_cast<std::size_t>(other) % processors_.size()]);
  bool stayed = false;
  for (int tries = 0; tries < 20 && !stayed; ++tries)
    stayed = seatAfter(0, ranks_) == processors_[0];
  EXPECT_TRUE(stayed);
}

}  // namespace
}  // namespace weft::collectives::shm
