// The pickles here are what torch's and Python's picklers write for RRef messages.
#include "rpc_backend/wire/rref_wire.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::rpc {
namespace {

using namespace std::string_literals;

std::span<const char> bytesOf(const std::string& text) { return {text.data(), text.size()}; }

const std::string kForkIds = "\x80\x02K\x01K\x05\x86q\x00K\x02M\x00\x01\x86q\x01\x86q\x02."s;

TEST(RRefWire, ReadsForkIds) {
  const auto ids = readForkIds(bytesOf(kForkIds));
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->value, (RRefKey{1, 5}));
  EXPECT_EQ(ids->fork, (RRefKey{2, 256}));
}

TEST(RRefWire, ReadsLargeIds) {
  const auto ids = readForkIds(bytesOf(
      "\x80\x02(K\x01\x8a\x08\x00\x00\x00\x00\x01\x00\x00\x00\x86K\x02J\x00\x00\x01\x00\x86t."s));
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->value, (RRefKey{1, std::int64_t{1} << 32}));
  EXPECT_EQ(ids->fork, (RRefKey{2, 65536}));
}

TEST(RRefWire, ReadsAForkId) {
  const auto fork = readForkId(bytesOf("\x80\x02K\x03K\x09\x86q\x00\x85q\x01."s));
  ASSERT_TRUE(fork);
  EXPECT_EQ(*fork, (RRefKey{3, 9}));
}

TEST(RRefWire, WhatIsFetchedIsRead) {
  const auto value = readFetchedId(bytesOf("\x80\x02K\x03K\x09\x86q\x00K\x02\x86q\x01."s));
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, (RRefKey{3, 9}));
  EXPECT_FALSE(readFetchedId(bytesOf(kForkIds)));
  EXPECT_FALSE(readFetchedId({}));
}

TEST(RRefWire, WhatIsCreatedIsRead) {
  const std::string ids = "K\x01K\x05\x86K\x01M\x00\x01\x86"s;
  for (const std::string& before : {""s, "K\x07"s, "K\x03K\x04\x86q\x00"s, std::string(100, 'K')}) {
    for (const std::string& after : {"t."s, "\x88tq\x03."s, "\x89t."s}) {
      const auto created =
          readCreatedIds(bytesOf("\x80\x02(" + before + "X\x01\x00\x00\x00z" + ids + after));
      ASSERT_TRUE(created) << before << after;
      EXPECT_EQ(*created, (ForkIds{{1, 5}, {1, 256}}));
    }
  }
  EXPECT_FALSE(readCreatedIds({}));
  EXPECT_FALSE(readCreatedIds(bytesOf("\x80\x02(" + ids)));
}

TEST(RRefWire, EveryTruncationAndAddition) {
  for (std::size_t length = 0; length < kForkIds.size(); ++length) {
    EXPECT_FALSE(readForkIds(bytesOf(kForkIds.substr(0, length)))) << "at " << length;
  }
  EXPECT_FALSE(readForkIds(bytesOf(kForkIds + "."s)));
  EXPECT_FALSE(readForkId(bytesOf(kForkIds)));
  EXPECT_FALSE(
      readForkIds(bytesOf("\x80\x02K\x01K\x05\x86X\x01\x00\x00\x00zK\x02K\x01\x86\x86."s)));
}

TEST(RRefWire, RefusesIdsOutOfRange) {
  EXPECT_FALSE(readForkId(bytesOf("\x80\x02J\xff\xff\xff\xffK\x09\x86\x85."s)));
  EXPECT_FALSE(readForkId(bytesOf("\x80\x02M\xff\xffK\x09\x86\x85."s)));
  EXPECT_FALSE(readForkId(bytesOf("\x80\x02K\x01J\xff\xff\xff\xff\x86\x85."s)));
}

// (owner 0, value 0:2, fork 1:3, parent 1, "int"), as each pickler writes it.
const std::string kByPython = "(K\x00K\x00K\x02K\x01K\x03K\x01\x8c\x03int\x94t\x94"s;
const std::string kByJit = "(K\x00K\x00K\x02K\x01K\x03K\x01X\x03\x00\x00\x00intq\x01tR"s;
const std::string kAgain = "(K\x00K\x00K\x02K\x01K\x04K\x01h\x01tR"s;

TEST(RRefWire, FindsPickledRRefs) {
  const auto found = findPickledRRefs(bytesOf("((a(" + kByPython + "zz" + kByJit + kAgain), 1);
  ASSERT_EQ(found.size(), 3U);
  for (const PickledRRef& rref : found) {
    EXPECT_EQ(rref.owner, 0);
    EXPECT_EQ(rref.parent, 1);
    EXPECT_EQ(rref.ids.value, (RRefKey{0, 2}));
  }
  EXPECT_EQ(found[0].ids.fork, (RRefKey{1, 3}));
  EXPECT_EQ(found[2].ids.fork, (RRefKey{1, 4}));
}

TEST(RRefWire, FindsNoMoreThanAreAskedFor) {
  const auto found = findPickledRRefs(bytesOf(kByPython + kByJit + kAgain), 1, 2);
  EXPECT_EQ(found.size(), 2U);
}

TEST(RRefWire, FindsOneAcrossAFrame) {
  const std::string frame = "\x95\x00\x00\x01\x00\x00\x00\x00\x00"s;
  const auto found = findPickledRRefs(
      bytesOf("(K\x00K\x00"s + frame + "K\x02K\x01K\x03K\x01"s + frame + "\x8c\x03int"s), 1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ids.fork, (RRefKey{1, 3}));
}

TEST(RRefWire, IgnoresWhatAnotherPickled) {
  EXPECT_TRUE(findPickledRRefs(bytesOf(kByPython), 2).empty());
  EXPECT_TRUE(findPickledRRefs(bytesOf("(K\x00K\x00K\x02K\x01K\x03K\x01K\x09t"s), 1).empty());
  for (std::size_t length = 0; length < 14; ++length) {
    EXPECT_TRUE(findPickledRRefs(bytesOf(kByPython.substr(0, length)), 1).empty()) << length;
  }
}

}  // namespace
}  // namespace weft::rpc
