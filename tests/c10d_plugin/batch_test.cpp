// Batches of operations (CoalescingBatches) and the Work of one, where backends and parts fail.
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <vector>

#include "c10d_plugin/engine/coalesced_work.h"
#include "c10d_plugin/engine/coalescing_batches.h"

namespace weft::process_group {
namespace {

using testing::ElementsAre;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

struct NotedWork final : c10d::Work {
  bool wait(std::chrono::milliseconds) override {
    ++waits;
    if (thrown) std::rethrow_exception(thrown);
    return true;
  }
  std::exception_ptr exception() const override { return own ? thrown : nullptr; }
  FuturePtr getFuture() override { return future; }

  int waits = 0;
  std::exception_ptr thrown;
  bool own = true;  // what is thrown is the operation's
  FuturePtr future;
};

struct NotingBackend final : c10d::Backend {
  NotingBackend() : c10d::Backend(0, 1) {}

  void startCoalescing() override { notes.emplace_back("start"); }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    notes.emplace_back("end");
    if (fails) TORCH_CHECK(false, "the batch cannot be sent");
    return work;
  }

  std::vector<std::string> notes;
  bool fails = false;
  c10::intrusive_ptr<NotedWork> work = c10::make_intrusive<NotedWork>();
};

template <typename Exception>
c10::intrusive_ptr<NotedWork> failing(Exception error, bool own = true) {
  auto work = c10::make_intrusive<NotedWork>();
  work->thrown = std::make_exception_ptr(error);
  work->own = own;
  return work;
}

TEST(Batch, EndsEverywhereThoughABackendCannotEndIt) {
  const auto bad = c10::make_intrusive<NotingBackend>();
  const auto good = c10::make_intrusive<NotingBackend>();
  const auto before = c10::make_intrusive<NotedWork>();
  bad->fails = true;
  CoalescingBatches batches;
  batches.start();
  batches.add(before);
  batches.join(bad);
  batches.join(good);
  EXPECT_THROW(batches.end(), c10::Error);
  EXPECT_THAT(bad->notes, ElementsAre("start", "end"));
  EXPECT_THAT(good->notes, ElementsAre("start", "end"));
  EXPECT_EQ(before->waits, 1);
  EXPECT_EQ(good->work->waits, 1);
  EXPECT_FALSE(batches.isOpen());
}

TEST(Batch, IsWaitedForThoughAPartFails) {
  const auto last = c10::make_intrusive<NotedWork>();
  const auto batch = c10::make_intrusive<CoalescedWork>(std::vector<c10::intrusive_ptr<c10d::Work>>{
      failing(std::bad_alloc()), failing(std::runtime_error("later")), last});
  EXPECT_THROW(batch->wait(std::chrono::seconds(1)), std::bad_alloc);
  EXPECT_EQ(last->waits, 1);
}

// As what Ctrl-C's handler raises.
TEST(Batch, IsNotWaitedForOnceSomethingElseIsThrown) {
  const auto last = c10::make_intrusive<NotedWork>();
  const auto batch = c10::make_intrusive<CoalescedWork>(std::vector<c10::intrusive_ptr<c10d::Work>>{
      failing(std::runtime_error("Ctrl-C"), false), last});
  EXPECT_THROW(batch->wait(std::chrono::seconds(1)), std::runtime_error);
  EXPECT_EQ(last->waits, 0);
}

TEST(Batch, HasAFutureThoughItsPartsHaveOutputsOfDifferentKinds) {
  const std::vector<at::Tensor> one{at::empty({2})};
  const auto list = c10::make_intrusive<NotedWork>();
  const auto lists = c10::make_intrusive<NotedWork>();
  const c10::TypePtr tensors = c10::ListType::ofTensors();
  list->future = c10::make_intrusive<c10::ivalue::Future>(tensors);
  lists->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(tensors));
  const auto batch =
      c10::make_intrusive<CoalescedWork>(std::vector<c10::intrusive_ptr<c10d::Work>>{list, lists});
  const FuturePtr future = batch->getFuture();
  list->future->markCompleted(c10::IValue(one));
  EXPECT_FALSE(future->completed());
  lists->future->markCompleted(c10::IValue(std::vector<std::vector<at::Tensor>>{one, one}));
  ASSERT_TRUE(future->completed());
  const auto values = future->value().toListRef();
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[0].toFuture()->value().toTensorVector().size(), 1U);
  EXPECT_EQ(values[1].toFuture()->value().toListRef().size(), 2U);
}

}  // namespace
}  // namespace weft::process_group
