// The pickles here are what torch's pickler writes for wrapped messages, and attempts to
// make its unpickler read another type than ours.
#include "rpc_backend/wire/wrapped_type.h"

#include <gtest/gtest.h>

#include <string>

#include "rpc_backend/wire/pickle_scan.h"

namespace weft::rpc {
namespace {

using namespace std::string_literals;

std::string payloadOf(const std::string& inner, const std::string& pickle) {
  std::string length(8, '\0');
  std::size_t rest = pickle.size();
  for (std::size_t i = 8; i-- > 0; rest >>= 8)
    length[i] = static_cast<char>(rest & 0xff);
  return inner + pickle + length;
}

std::optional<WrappedMessage> read(const std::string& payload) {
  return readWrappedType(std::span(payload.data(), payload.size()));
}

std::string tag(const std::string& value, const std::string& type) {
  std::string length(4, '\0');
  length[0] = static_cast<char>(type.size());
  return "ctorch.jit._pickle\nrestore_type_tag\nq\x00("s + value + "X"s + length + type + "tR"s;
}

TEST(WrappedType, ReadsTheFirstNumberOfATuple) {
  const std::string payload =
      payloadOf("inner", "\x80\x02(M\x0f\x01K\x02K\x03"s + "J\x01\x00\x00\x00t."s);
  const auto found = read(payload);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 0x10f);
  EXPECT_EQ(std::string(found->inner_payload.data(), found->inner_payload.size()), "inner");
}

TEST(WrappedType, ReadsShortTuplesAndNestedOnes) {
  // (type, (1, False), (3, 4)) as the profiling wrapper has it.
  const auto found = read(payloadOf("i", "\x80\x02M\x15\x01K\x01\x89\x86K\x03K\x04\x86\x87."s));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 0x115);
}

TEST(WrappedType, ReadsDictionariesWithTheirAnnotation) {
  const std::string dict = "}q\x01(X\x01\x00\x00\x00"s + "aX\x01\x00\x00\x00"s + "bu"s;
  const auto found =
      read(payloadOf("i", "\x80\x02(K\x00K\x01K\x02"s + tag(dict, "Dict[str, str]") + "t."s));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 0);
}

TEST(WrappedType, ReadsTheSecondListWhoseAnnotationFetchesTheName) {
  // As the events of a profile are written.
  const auto list = [](const std::string& name) {
    return name + "("s + "]q\x01(K\x05K\x06" + "eX\x09\x00\x00\x00List[int]tR"s;
  };
  const std::string first = list("ctorch.jit._pickle\nrestore_type_tag\nq\x00"s);
  const auto found = read(payloadOf("i", "\x80\x02(M\x0f\x01"s + first + list("h\x00"s) + "t."s));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 0x10f);
  // Another value has its place in the memo.
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02(M\x0f\x01"s + first + list("h\x01"s) + "t."s)));
}

TEST(WrappedType, EveryTruncationIsRefused) {
  const std::string whole = payloadOf("inner", "\x80\x02(M\x0f\x01K\x02K\x03t."s);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(read(whole.substr(0, length))) << "at " << length;
  }
}

TEST(WrappedType, LengthsThatPointOutsideAreRefused) {
  const std::string pickle = "\x80\x02(K\x02K\x03t."s;
  EXPECT_FALSE(read(payloadOf("", pickle)));  // nothing left for the inner message
  EXPECT_FALSE(read("inner" + pickle + std::string(8, '\xff')));
  EXPECT_FALSE(read("inner" + pickle + std::string(8, '\0')));
}

TEST(WrappedType, OtherOpcodesAreRefused) {
  for (const char op : {'i', 'o', 'b', '0', '1', '2', 'd', 'l', 'Q', 'P', '\x81', '\x93'}) {
    const std::string pickle = "\x80\x02(K\x00K\x01"s + op + "t."s;
    EXPECT_FALSE(read(payloadOf("inner", pickle))) << static_cast<int>(op);
  }
}

TEST(WrappedType, AFirstElementThatIsNoLiteralIsRefused) {
  // From the memo: what it holds is not known here.
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02(h\x01K\x01t."s)));
  // Through the annotation, whose result is the tagged value.
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02("s + tag("K\x02"s, "int") + "K\x01t."s)));
}

TEST(WrappedType, AGlobalStandsForANumberAndIsRefusedInTuples) {
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02(ctorch.jit._pickle\nrestore_type_tag\nK\x01t."s)));
  const std::string tag = "ctorch.jit._pickle\nrestore_type_tag\n";
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02(K\x00"s + tag + "t."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02(K\x00"s + "cos\nsystem\nt."s)));
}

TEST(WrappedType, OtherNamesThanThoseOfContainersAreRefused) {
  for (const std::string call :
       {"c__torch__\nColour\nK\x01R", "c__torch__\nrestore_type_tag\nK\x01R",
        "cbuiltins\ncomplex\n)R", "ctorch\ndevice\n)R"}) {
    const std::string pickle = "\x80\x02(K\x05"s + call + "t.";
    EXPECT_FALSE(read(payloadOf("i", pickle))) << call;
  }
}

// As a profile with shapes has it.
TEST(WrappedType, ListsOfNumbersMayStandBesideTheType) {
  const auto found = read(
      payloadOf("i", "\x80\x02(K\x05"s + "ctorch.jit._pickle\nbuild_intlist\n](K\x01\x65\x85Rt."));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 5);
}

TEST(WrappedType, ALongHasEightBytes) {
  const auto found = read(payloadOf("i", "\x80\x02\x8a\x08\x0f\x01\0\0\0\0\0\0\x85."s));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, 0x10f);
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02\x8a\x01\x05\x85."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02K\x00\x8a\x01\x05\x86."s)));
}

TEST(WrappedType, ANumberThatNoMessageHasIsRefused) {
  EXPECT_TRUE(read(payloadOf("i", "\x80\x02M\xff\x03\x85."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02M\x00\x04\x85."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x85."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02\x8a\x08\x0f\x01\0\0\0\0\0\x01\x85."s)));
}

TEST(WrappedType, ATupleThatIsReplacedIsRefused) {
  // The first tuple names type 0; a REDUCE then puts another value in its place.
  const std::string first = "(K\x00K\x01t"s;
  const std::string annotated = "\x80\x02"s + "ctorch.jit._pickle\nrestore_type_tag\n("s + first +
                                "X\x01\x00\x00\x00"s + "xtR."s;
  EXPECT_FALSE(read(payloadOf("i", annotated)));
  // Two values at the end, or a mark left over.
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02"s + first + first + "."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02("s + first + "."s)));
  // A tuple in which it is the first element, or the second.
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02"s + first + "\x85."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02"s + first + "K\x01\x86."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02K\x05"s + first + "."s)));
  // Only its place in the memo may come after it.
  EXPECT_TRUE(read(payloadOf("i", "\x80\x02"s + first + "q\x00."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02"s + first + "q\x00h\x00."s)));
  EXPECT_FALSE(read(payloadOf("i", "\x80\x02"s + first + ".."s)));
}

}  // namespace
}  // namespace weft::rpc
