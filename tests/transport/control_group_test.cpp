// The limit on memory of a process's control groups, from files as systems have them.
#include "transport/memory/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

class ControlGroup : public ::testing::Test {
 protected:
  ~ControlGroup() override { std::filesystem::remove_all(mount); }
  void put(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = mount + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  const std::string mount = ::testing::TempDir() + "/groups" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ControlGroup, OfVersion2TheLeastLimitCounts) {
  put("a/b/memory.max", "max");
  EXPECT_EQ(controlGroupBytes("0::/a/b\n", mount), 0U);
  put("a/memory.max", "3000000");
  EXPECT_EQ(controlGroupBytes("0::/a/b\n", mount), 3'000'000U);
  put("a/b/memory.max", "2000000");
  EXPECT_EQ(controlGroupBytes("0::/a/b\n", mount), 2'000'000U);
  EXPECT_EQ(controlGroupBytes("0::/a\n", mount), 3'000'000U);
}

TEST_F(ControlGroup, OfVersion1TheMemoryHierarchyCounts) {
  put("memory/memory.limit_in_bytes", "9223372036854771712");
  put("memory/job/memory.limit_in_bytes", "5000000");
  put("cpu/job/memory.limit_in_bytes", "1");
  EXPECT_EQ(controlGroupBytes("4:cpu:/job\n3:memory,hugetlb:/job\n0::/\n", mount), 5'000'000U);
}

// The path is the host's, and the mount shows the container's own group.
TEST_F(ControlGroup, InAContainerTheRootIsItsOwn) {
  put("memory/memory.limit_in_bytes", "7000000");
  EXPECT_EQ(controlGroupBytes("3:memory:/docker/0123\n", mount), 7'000'000U);
}

TEST_F(ControlGroup, WhatIsNoLimitIsNone) {
  put("memory.max", "0");
  for (const char* groups :
       {"", "\n", ":", "::", "0::", "0::/", "x", "3:memory:a", "0::/../../etc\n"})
    EXPECT_EQ(controlGroupBytes(groups, mount), 0U) << groups;
}

TEST(Shares, AreOfTheMachine) {
  EXPECT_EQ(atMostHalf(1), 1U);
  EXPECT_EQ(atMostQuarter(1), 1U);
  if (machineBytes() == 0) GTEST_SKIP() << "the system does not say how much memory it has";
  EXPECT_EQ(atMostHalf(~std::uint64_t{0}), machineBytes() / 2);
  EXPECT_EQ(atMostQuarter(~std::uint64_t{0}), machineBytes() / 4);
}

}  // namespace
}  // namespace weft::transport
