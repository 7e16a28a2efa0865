// What comes to a worker for its stages: kept until taken, dropped when the mini-batch is over.
#include "pipe/workers/arrivals.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace weft::pipe {
namespace {

using namespace std::chrono_literals;

Parcel parcelOf(double number) { return {"layout", {at::full({1}, number)}}; }

TEST(Arrivals, AParcelIsTakenOnce) {
  Arrivals arrivals;
  arrivals.put({0, Sent::kInput, 1, 2}, parcelOf(3));
  const auto found = arrivals.take({0, Sent::kInput, 1, 2}, 1ms);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->layout, "layout");
  EXPECT_EQ(found->tensors.at(0).item<double>(), 3);
  EXPECT_FALSE(arrivals.take({0, Sent::kInput, 1, 2}, 1ms).has_value());
}

TEST(Arrivals, EachKeyHasItsOwn) {
  Arrivals arrivals;
  const ArrivalKey keys[] = {{0, Sent::kInput, 1, 2},
                             {0, Sent::kGradients, 1, 2},
                             {0, Sent::kInput, 2, 1},
                             {1, Sent::kInput, 1, 2}};
  double number = 0;
  for (const ArrivalKey& key : keys)
    arrivals.put(key, parcelOf(number++));
  number = 0;
  for (const ArrivalKey& key : keys)
    EXPECT_EQ(arrivals.take(key, 1ms)->tensors.at(0).item<double>(), number++);
}

TEST(Arrivals, WhoWaitsGetsWhatComes) {
  Arrivals arrivals;
  auto taken = std::async(std::launch::async, [&] {
    return arrivals.take({0, Sent::kGradients, 0, 0}, 1min);
  });
  arrivals.put({0, Sent::kGradients, 0, 0}, parcelOf(4));
  EXPECT_EQ(taken.get()->tensors.at(0).item<double>(), 4);
}

TEST(Arrivals, TheEndOfAMiniBatchEndsItsWaits) {
  Arrivals arrivals;
  auto taken = std::async(std::launch::async, [&] {
    return arrivals.take({3, Sent::kInput, 0, 0}, 1min);
  });
  arrivals.end(3, "a stage failed");
  try {
    taken.get();
    FAIL() << "the wait has not ended with an error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a stage failed");
  }
}

TEST(Arrivals, WhatIsForMiniBatchesThatAreOverIsDropped) {
  Arrivals arrivals;
  arrivals.put({2, Sent::kInput, 0, 0}, parcelOf(1));
  arrivals.put({3, Sent::kInput, 0, 0}, parcelOf(1));
  arrivals.end(2, "over");
  EXPECT_EQ(arrivals.size(), 1);
  arrivals.put({1, Sent::kInput, 0, 0}, parcelOf(1));
  EXPECT_EQ(arrivals.size(), 1);
  EXPECT_TRUE(arrivals.isOver(2));
  EXPECT_FALSE(arrivals.isOver(3));
}

TEST(Arrivals, AClosedPipelineHasNone) {
  const auto opened = openArrivals("pipeline");
  EXPECT_EQ(findArrivals("pipeline"), opened);
  closeArrivals("pipeline", opened);
  EXPECT_EQ(findArrivals("pipeline"), nullptr);
  EXPECT_THROW(opened->take({0, Sent::kInput, 0, 0}, 1min), std::runtime_error);
}

TEST(Arrivals, OnesThatWereReplacedCloseThemselvesAlone) {
  const auto former = openArrivals("pipeline");
  const auto opened = openArrivals("pipeline");
  closeArrivals("pipeline", former);
  EXPECT_TRUE(former->isOver(0));
  EXPECT_EQ(findArrivals("pipeline"), opened);
  EXPECT_FALSE(opened->isOver(0));
  closeArrivals("pipeline", opened);
}

}  // namespace
}  // namespace weft::pipe
