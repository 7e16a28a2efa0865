// OpRecorder: which entry an operation finds.
#include "c10d_plugin/engine/op_recorder.h"

#include <gtest/gtest.h>

namespace weft::process_group {
namespace {

std::uint64_t add(const char* title) {
  OpRecord record;
  record.title = title;
  return OpRecorder::get().add(record);
}

class Recorder : public testing::Test {
 protected:
  Recorder() { recorder.start(3, /*stacks=*/false, /*cpp_stacks=*/false); }
  ~Recorder() override { recorder.start(0, false, false); }

  OpRecorder& recorder = OpRecorder::get();
};

TEST_F(Recorder, KeepsTheLast) {
  for (const char* const title : {"a", "b", "c", "d"})
    add(title);
  const auto kept = recorder.entries();
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_STREQ(kept.front().title, "b");
  EXPECT_STREQ(kept.back().title, "d");
}

TEST_F(Recorder, AnOperationWhosePlaceIsTakenFindsNothing) {
  const std::uint64_t old = add("a");
  for (const char* const title : {"b", "c", "d"})
    add(title);
  recorder.ended(old, /*failed=*/true);
  EXPECT_FALSE(recorder.entry(old));
  for (const OpRecord& one : recorder.entries())
    EXPECT_FALSE(one.failed) << one.title;
}

TEST_F(Recorder, AnOperationOfBeforeANewStartFindsNothing) {
  add("a");
  const std::uint64_t old = add("b");
  recorder.start(3, false, false);
  recorder.started(old);  // nothing is kept yet
  add("c");
  add("d");
  recorder.ended(old, /*failed=*/true);
  EXPECT_FALSE(recorder.entry(old));
  for (const OpRecord& one : recorder.entries())
    EXPECT_EQ(one.ended_ns, 0) << one.title;
}

}  // namespace
}  // namespace weft::process_group
