// Server-side batching: rows go back to whom they belong, and one run serves many.
#include "jit_ops/serve/batched.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "rpc_backend/core/call_context.h"
#include "tests/support/waiting.h"

namespace weft::ops {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

struct Counted {
  std::atomic<int> runs{0};
  std::shared_ptr<Servable> made;
};

// Doubles its rows, and counts how often it runs.
std::shared_ptr<Counted> doubler(BatchOptions options) {
  auto counted = std::make_shared<Counted>();
  Counted* raw = counted.get();
  counted->made = batched(servable("twice(Tensor x) -> Tensor",
                                   [raw](Values args) {
                                     ++raw->runs;
                                     return at::IValue(args.at(0).toTensor() * 2);
                                   }),
                          options);
  return counted;
}

FuturePtr ask(Servable& servable, const at::Tensor& x) {
  return servable.run(*servable.find(kForward), {x}, {});
}

TEST(Batched, OneRunServesMany) {
  // So long a delay that only a full batch runs in time.
  const auto counted = doubler({.max_requests = 4, .max_delay = seconds(20)});
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      const at::Tensor x = at::full({i + 1, 3}, i);
      const auto answer = ask(*counted->made, x);
      answer->wait();
      wrong += at::equal(answer->value().toTensor(), x * 2) ? 0 : 1;
    });
  }
  for (auto& caller : callers)
    caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(counted->runs, 1);
}

TEST(Batched, TheDelayEndsTheWait) {
  const auto counted = doubler({.max_requests = 100, .max_delay = microseconds(100)});
  const auto answer = ask(*counted->made, at::ones({2, 2}));
  EXPECT_TRUE(answer->completed());
  EXPECT_EQ(counted->runs, 1);
}

TEST(Batched, OtherShapesAreNotMixed) {
  const auto counted = doubler({.max_requests = 2, .max_delay = microseconds(20000)});
  std::thread other([&] { ask(*counted->made, at::ones({1, 5}))->wait(); });
  ask(*counted->made, at::ones({1, 3}))->wait();
  other.join();
  EXPECT_EQ(counted->runs, 2);
}

TEST(Batched, AnErrorReachesEveryCaller) {
  auto made =
      batched(servable("fails(Tensor x) -> Tensor",
                       [](Values /*args*/) -> at::IValue { TORCH_CHECK(false, "no luck today"); }),
              {.max_requests = 2, .max_delay = seconds(20)});
  std::string there;
  std::thread other([&] {
    const auto answer = ask(*made, at::ones({1}));
    answer->wait();
    there = answer->tryRetrieveErrorMessage();
  });
  const auto answer = ask(*made, at::ones({1}));
  answer->wait();
  other.join();
  EXPECT_NE(answer->tryRetrieveErrorMessage().find("no luck today"), std::string::npos);
  EXPECT_NE(there.find("no luck today"), std::string::npos);
}

TEST(Batched, OneRequestsFailureIsItsOwn) {
  auto made = batched(servable("roots(Tensor x) -> Tensor",
                               [](Values args) -> at::IValue {
                                 const at::Tensor x = args.at(0).toTensor();
                                 TORCH_CHECK((x >= 0).all().item<bool>(), "a negative number");
                                 return x.sqrt();
                               }),
                      {.max_requests = 2, .max_delay = seconds(20)});
  FuturePtr bad;
  std::thread other([&] { (bad = ask(*made, at::full({1}, -1)))->wait(); });
  const auto good = ask(*made, at::full({2}, 4.0));
  good->wait();
  other.join();
  EXPECT_NE(bad->tryRetrieveErrorMessage().find("a negative number"), std::string::npos);
  ASSERT_FALSE(good->hasError()) << good->tryRetrieveErrorMessage();
  EXPECT_TRUE(at::equal(good->value().toTensor(), at::full({2}, 2.0)));
}

TEST(Batched, QuantisedAndSparseTensorsRunAlone) {
  const auto made = batched(servable("real(Tensor x) -> Tensor",
                                     [](Values args) -> at::IValue {
                                       const at::Tensor x = args.at(0).toTensor();
                                       return x.is_sparse() ? x.to_dense() : x.dequantize();
                                     }),
                            {.max_requests = 2, .max_delay = seconds(20)});
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (const double scale : {0.5, 2.0}) {
    callers.emplace_back([&, scale] {
      const at::Tensor x = at::quantize_per_tensor(at::full({2, 2}, 6.0), scale, 0, at::kQInt8);
      const auto answer = ask(*made, x);
      answer->wait();
      wrong += at::equal(answer->value().toTensor(), at::full({2, 2}, 6.0)) ? 0 : 1;
    });
  }
  for (auto& caller : callers)
    caller.join();
  EXPECT_EQ(wrong, 0);
  const auto answer = ask(*made, at::eye(3).to_sparse());
  EXPECT_TRUE(at::equal(answer->value().toTensor(), at::eye(3)));
}

// A batch with a call of an hour and, last to come, one that is given up.
TEST(Batched, ABatchMayTakeAsLongAsItsLatestCall) {
  using rpc::CallContext;
  const auto now = CallContext::Clock::now();
  const auto late = std::make_shared<CallContext>(now + std::chrono::hours(1));
  const auto early = std::make_shared<CallContext>(now + std::chrono::minutes(1));
  early->cancel();
  double left = 0;
  std::vector<bool> cancelled;
  const auto made = batched(servable("f(Tensor x) -> Tensor",
                                     [&](Values args) -> at::IValue {
                                       left = rpc::secondsLeft().value_or(0);
                                       cancelled.push_back(rpc::isCancelled());
                                       late->cancel();
                                       cancelled.push_back(rpc::isCancelled());
                                       return args.at(0);
                                     }),
                            {.max_requests = 2, .max_delay = seconds(20)});
  const auto askFor = [&](const std::shared_ptr<CallContext>& call) {
    const rpc::CallScope scope(call.get());
    ask(*made, at::ones({1}))->wait();
  };
  std::thread first([&] { askFor(late); });
  // A request keeps its call: the first is in the batch, or about to be.
  EXPECT_TRUE(waitUntil([&] { return late.use_count() > 1; }, seconds(20)));
  askFor(early);
  first.join();
  EXPECT_GT(left, 1800);
  EXPECT_EQ(cancelled, (std::vector<bool>{false, true}));
}

TEST(Batched, WrongUseIsNamed) {
  EXPECT_THROW(batched(servable("f(Tensor x) -> Tensor", [](Values a) { return a[0]; }),
                       {.max_delay = std::chrono::hours(2)}),
               c10::Error);
  EXPECT_THROW(batched(servable("f(int x) -> int", [](Values a) { return a[0]; })), c10::Error);
  EXPECT_THROW(batched(servable("f() -> int", [](Values) { return at::IValue(1); })), c10::Error);
  auto sums = batched(
      servable("f(Tensor x) -> Tensor", [](Values a) { return at::IValue(a[0].toTensor().sum()); }),
      {.max_requests = 1});
  const auto answer = ask(*sums, at::ones({3}));
  EXPECT_NE(answer->tryRetrieveErrorMessage().find("must return a row for each row"),
            std::string::npos);
  EXPECT_THROW(ask(*sums, at::ones({})), c10::Error);
}

// Random sizes from many threads: every caller gets its own rows back.
TEST(Batched, ManyCallersGetTheirOwn) {
  const auto counted = doubler({.max_requests = 5, .max_delay = microseconds(300)});
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const at::Tensor x = at::full({1 + (t + i) % 4, 2}, t * 1000 + i);
        const auto answer = ask(*counted->made, x);
        answer->wait();
        wrong += at::equal(answer->value().toTensor(), x * 2) ? 0 : 1;
      }
    });
  }
  for (auto& caller : callers)
    caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(counted->runs, 300);
}

}  // namespace
}  // namespace weft::ops
