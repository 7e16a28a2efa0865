// Deadlines of calls, and the table of those that a caller may take back.
#include "rpc_backend/core/call_context.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "rpc_backend/serve/request_index.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using Clock = CallContext::Clock;

TEST(CallContext, OutsideOfACallThereIsNone) {
  EXPECT_EQ(CallContext::current(), nullptr);
  EXPECT_EQ(timeOfCall(5ms, Clock::now()).timeout, 5ms);
  EXPECT_EQ(timeOfCall(0ms, Clock::now()).timeout, 0ms);
}

TEST(CallContext, ScopesNestAndBelongToTheirThread) {
  const CallContext outer(Clock::now() + 1h);
  const CallContext inner;
  const CallScope scope(&outer);
  {
    const CallScope nested(&inner);
    EXPECT_EQ(CallContext::current(), &inner);
    const CallScope none(nullptr);
    EXPECT_EQ(CallContext::current(), nullptr);
  }
  EXPECT_EQ(CallContext::current(), &outer);
  std::thread([] { EXPECT_EQ(CallContext::current(), nullptr); }).join();
}

TEST(CallContext, WorkForSeveralCallsGoesOnForTheLastOfThem) {
  const auto now = Clock::now();
  const auto one = std::make_shared<CallContext>(now + 1h);
  const auto other = std::make_shared<CallContext>(now + 2h);
  const CallContext both({one, other});
  EXPECT_EQ(both.deadline(), now + 2h);
  one->cancel();
  EXPECT_FALSE(both.isCancelled());
  const CallContext endless({one, nullptr});
  EXPECT_FALSE(endless.hasDeadline());
  other->cancel();
  EXPECT_TRUE(both.isCancelled());
  EXPECT_FALSE(endless.isCancelled());
}

TEST(CallContext, ACallbackKeepsTheDeadlineOfItsCallAndNotTheCall) {
  const auto deadline = Clock::now() + 1h;
  auto call = std::make_shared<CallContext>(deadline);
  std::optional<CallbackContext> registered;
  {
    const CallScope scope(call.get());
    registered.emplace();
    EXPECT_TRUE(registered->isCurrent());
  }
  EXPECT_FALSE(registered->isCurrent());
  const auto other = std::make_shared<CallContext>(deadline);
  const CallScope scope(other.get());
  EXPECT_FALSE(registered->isCurrent());
  EXPECT_EQ(call.use_count(), 1);
  call.reset();
  EXPECT_EQ(registered->deadline(), deadline);
  const CallScope none(nullptr);
  EXPECT_EQ(CallbackContext().deadline(), CallContext::kNever);
  EXPECT_FALSE(CallbackContext().isCurrent());
}

TEST(CallContext, TheEarlierDeadlineHolds) {
  const auto now = Clock::now();
  const CallContext context(now + 100ms);
  const CallScope scope(&context);
  const auto shorter = timeOfCall(99ms, now);
  EXPECT_EQ(shorter.timeout, 99ms);
  EXPECT_FALSE(shorter.inherited);
  for (const auto own : {101ms, 0ms, std::chrono::milliseconds(std::int64_t{1} << 40)}) {
    const auto longer = timeOfCall(own, now);
    EXPECT_EQ(longer.timeout, 100ms);
    EXPECT_TRUE(longer.inherited);
  }
}

TEST(CallContext, WhatIsLeftIsNeverNoLimit) {
  const auto now = Clock::now();
  const CallContext context(now + 1us);
  const CallScope scope(&context);
  EXPECT_EQ(timeOfCall(0ms, now).timeout, 1ms);
  EXPECT_FALSE(timeOfCall(0ms, now).over);
  EXPECT_TRUE(timeOfCall(0ms, now + 1us).over);
  EXPECT_TRUE(timeOfCall(1ms, now + 1h).over);
}

TEST(CallContext, NoDeadlineIsNotInherited) {
  const CallContext context;
  const CallScope scope(&context);
  EXPECT_EQ(timeOfCall(0ms, Clock::now()).timeout, 0ms);
  EXPECT_EQ(timeOfCall(7ms, Clock::now()).timeout, 7ms);
  EXPECT_FALSE(context.isCancelled());
}

TEST(CallContext, IsCancelledByItsCallerOrItsDeadline) {
  EXPECT_TRUE(CallContext(Clock::now()).isCancelled());
  CallContext context(Clock::now() + 1h);
  EXPECT_FALSE(context.isCancelled());
  context.cancel();
  EXPECT_TRUE(context.isCancelled());
}

TEST(RequestIndex, FindsWhatIsHere) {
  RequestIndex<CallContext> index;
  std::vector<std::shared_ptr<CallContext>> calls;
  for (const std::uint64_t id : {5U, 6U, 4U, 9U, 1U}) {
    calls.push_back(std::make_shared<CallContext>());
    index.add(id, calls.back());
  }
  EXPECT_FALSE(index.cancel(7));
  EXPECT_FALSE(index.cancel(0));
  EXPECT_FALSE(index.cancel(10));
  EXPECT_TRUE(index.cancel(4));
  EXPECT_TRUE(index.cancel(9));
  std::vector<bool> cancelled;
  for (const auto& call : calls)
    cancelled.push_back(call->isCancelled());
  EXPECT_EQ(cancelled, (std::vector<bool>{false, false, true, true, false}));
  calls[0].reset();
  EXPECT_FALSE(index.cancel(5));  // it is over
  index.cancelAll();
  EXPECT_TRUE(calls[1]->isCancelled());
  EXPECT_EQ(index.size(), 0U);
}

TEST(RequestIndex, ForgetsWhatIsOver) {
  RequestIndex<CallContext> index;
  const auto longest = std::make_shared<CallContext>();
  index.add(0, longest);
  for (std::uint64_t id = 1; id < 100'000; ++id) {
    index.add(id, std::make_shared<CallContext>());
    ASSERT_LE(index.size(), 64U);
  }
  std::vector<std::shared_ptr<CallContext>> many;
  for (std::uint64_t id = 100'000; id < 110'000; ++id) {
    many.push_back(std::make_shared<CallContext>());
    index.add(id, many.back());
  }
  EXPECT_TRUE(index.cancel(0));
  for (std::uint64_t id = 100'000; id < 110'000; ++id)
    ASSERT_TRUE(index.cancel(id));
}

// A peer may number its requests as it likes.
TEST(RequestIndex, AnyOrderCostsLittle) {
  constexpr std::uint64_t kCount = 100'000;
  RequestIndex<CallContext> index;
  std::vector<std::shared_ptr<CallContext>> calls;
  const auto started = Clock::now();
  for (std::uint64_t id = kCount; id > 0; --id) {
    calls.push_back(std::make_shared<CallContext>());
    index.add(id, calls.back());
  }
  for (std::uint64_t id = 1; id <= kCount; ++id)
    ASSERT_TRUE(index.cancel(id));
  EXPECT_LT(Clock::now() - started, 2s);
}

}  // namespace
}  // namespace weft::rpc
