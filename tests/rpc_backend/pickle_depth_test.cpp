// Pickles as torch's pickler writes them, and those that would overflow the stack of its unpickler.
#include "rpc_backend/wire/pickle_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::rpc {
namespace {

using namespace std::string_literals;

bool shallow(const std::string& values) {
  const std::string pickle = "\x80\x02" + values + ".";
  return isShallowPickle(std::span(pickle.data(), pickle.size()));
}

std::string times(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i)
    all += text;
  return all;
}

std::string text(const std::string& value) {
  std::string length(4, '\0');
  for (std::size_t i = 0; i < 4; ++i)
    length[i] = static_cast<char>(value.size() >> (8 * i) & 0xff);
  return "X" + length + value;
}

std::string typed(const std::string& value, const std::string& type) {
  return "ctorch.jit._pickle\nrestore_type_tag\n(" + value + text(type) + "tR";
}

std::string lists(std::size_t depth) { return times("](", depth) + "K\x01" + times("e", depth); }

TEST(PickleDepth, WhatTorchWritesMayBeRead) {
  EXPECT_TRUE(shallow("(" + typed("]q\x01(K\x01K\x02\x65", "List[int]") +
                      typed("}q\x02(" + text("a") + "h\x01u", "Dict[str, List[int]]") +
                      text(times("[", 5000)) + "c__torch__\nPoint\n)\x81}(" + text("x") +
                      "G12345678ubt"));
  EXPECT_TRUE(shallow("]q\x01(" + times("K\x01", 100000) + "e"));
  EXPECT_TRUE(shallow("](" + times(lists(1), 10000) + "e")) << "wide is not deep";
  EXPECT_TRUE(shallow(lists(100)));
}

TEST(PickleDepth, DeepValuesMayNot) {
  EXPECT_FALSE(shallow(lists(100000)));
  EXPECT_FALSE(shallow("K\x01" + times("\x85", 100000)));
  EXPECT_FALSE(shallow(times("(", 100000) + times("t", 100000)));
  EXPECT_FALSE(shallow("K\x01" + times("}(K\x01", 600) + "K\x02" + times("u", 600)));
  EXPECT_FALSE(shallow(times("cf\nf\n", 600) + "K\x01" + times("\x85R", 600)));
  EXPECT_FALSE(shallow(times("c__torch__\nPoint\n)\x81", 600) + "K\x01" + times("b", 600)));
}

// Each holds the next, and gets what it holds only afterwards.
TEST(PickleDepth, WhatGrowsLaterMayNot) {
  EXPECT_FALSE(shallow("]q\x01]q\x02(h\x01" + "eh\x01(K\x01\x65"s));
  EXPECT_FALSE(shallow("](]q\x01\x65h\x01(K\x01\x65"));
}

TEST(PickleDepth, DeepTypesMayNot) {
  EXPECT_FALSE(shallow(typed("]", times("List[", 30000) + "int" + times("]", 30000))));
  EXPECT_FALSE(shallow(typed("]", times("(", 30000))));
  EXPECT_TRUE(shallow(typed("]", "List[Tuple[int, List[Dict[str, Tensor]]]]")));
}

TEST(PickleDepth, OtherOpcodesMayNot) {
  EXPECT_FALSE(shallow("(K\x01l"));
  EXPECT_FALSE(isShallowPickle({}));
  EXPECT_FALSE(shallow("t"));
}

TEST(PickleDepth, EveryTruncationEnds) {
  const std::string whole = "\x80\x02(" + typed("]q\x01(K\x01\x65", "List[int]") + "h\x01t.";
  for (std::size_t length = 2; length < whole.size(); ++length)
    EXPECT_TRUE(isShallowPickle(std::span(whole.data(), length))) << "at " << length;
}

}  // namespace
}  // namespace weft::rpc
