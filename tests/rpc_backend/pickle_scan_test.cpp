// Pickles as torch's pickler writes them, and those that its unpickler must not read.
#include "rpc_backend/wire/pickle_scan.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::rpc {
namespace {

using namespace std::string_literals;

constexpr std::int64_t kSender = 1;

// Empty: none.
std::string fault(const std::string& values) {
  const std::string pickle = "\x80\x02" + values + ".";
  return faultOf(std::span(pickle.data(), pickle.size()), kSender).value_or("");
}

void expectFault(const std::string& values, const std::string& part) {
  EXPECT_NE(fault(values).find(part), std::string::npos) << fault(values);
}

std::string times(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i)
    all += text;
  return all;
}

std::string fourBytes(std::size_t number) {
  std::string bytes(4, '\0');
  for (std::size_t i = 0; i < 4; ++i)
    bytes[i] = static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

std::string text(const std::string& value) { return "X" + fourBytes(value.size()) + value; }

std::string typed(const std::string& value, const std::string& type) {
  return "ctorch.jit._pickle\nrestore_type_tag\n(" + value + text(type) + "tR";
}

std::string lists(std::size_t depth) { return times("](", depth) + "K\x01" + times("e", depth); }

TEST(PickleScan, WhatTorchWritesMayBeRead) {
  EXPECT_EQ(fault("(" + typed("]q\x00(K\x01K\x02\x65"s, "List[int]") +
                  typed("}q\x01(" + text("a") + "h\x00u"s, "Dict[str, List[int]]") +
                  text(times("[", 5000)) + "}(" + text("x") + "G12345678ut"),
            "");
  EXPECT_EQ(fault("]q"s + '\0' + "(" + times("K\x01", 100000) + "e"), "");
  EXPECT_EQ(fault("](" + times(lists(1), 10000) + "e"), "") << "wide is not deep";
  EXPECT_EQ(fault(lists(100)), "");
}

TEST(PickleScan, TheNamesOfRpcMayBeRead) {
  const std::string ids = "K\x00K\x00K\x01K\x01K\x02K\x01"s;
  EXPECT_EQ(fault("(ctorch.jit._pickle\nbuild_tensor_from_id\n(K\x01tR"
                  "ctorch.jit._pickle\nbuild_intlist\n(](K\x01\x65tR"
                  "cbuiltins\ncomplex\nG12345678G12345678\x86R"
                  "ctorch\ndevice\n" +
                  text("cuda:0") + "\x85R" + "ctorch.distributed.rpc\nrref\n(" + ids +
                  text("List[Tuple[int, __torch__.mine.Point]]") + "tRt"),
            "");
}

// torch's unpickler calls an empty function for them.
TEST(PickleScan, ObjectsOfTorchScriptMayNot) {
  const std::string object = "which torch cannot send";
  expectFault("c__torch__.mine\nPoint\n)\x81}(" + text("x") + "K\x05ub", object);
  expectFault("c__torch__.mine\nColour\n" + text("#ff((") + "R", object);
  expectFault("c__torch__\nColour\nK\x01R", object);
}

TEST(PickleScan, OtherNamesMayNot) {
  for (const std::string name :
       {"torch._utils\n_rebuild_tensor_v2", "torch._utils\n_rebuild_qtensor",
        "torch._utils\n_rebuild_sparse_tensor", "torch._tensor\n_rebuild_from_type_v2",
        "torch\nFloatStorage", "collections\nOrderedDict", "__main__\nTensorID", "os\nsystem"}) {
    expectFault("(c" + name + "\nK\x01t", "does not call");
  }
  expectFault("c__torch__x\nPoint\n)\x81}b", "does not call");
}

// The unpickler would call what a number counts to.
TEST(PickleScan, NumbersAreNotCalled) {
  EXPECT_NE(fault("cbuiltins\ncomplex\nK\x00K\x01R"s), "");
  EXPECT_NE(fault("K\x01)\x81}b"), "");
}

TEST(PickleScan, DeepValuesMayNot) {
  const std::string deep = "nested too deeply";
  expectFault(lists(100000), deep);
  expectFault("K\x01" + times("\x85", 100000), deep);
  expectFault(times("(", 100000) + times("t", 100000), deep);
  expectFault(times("}(K\x01", 600) + "K\x02" + times("u", 600), deep);
  expectFault(times("cbuiltins\ncomplex\n", 600) + "K\x01" + times("\x85R", 600), deep);
}

// The type of each names that of the one below twice.
TEST(PickleScan, TuplesOfTheSameTuplesMayNot) {
  const auto tower = [](std::size_t levels) {
    std::string tuples = "N\x85r" + fourBytes(0);
    for (std::size_t i = 0; i < levels; ++i)
      tuples += "j" + fourBytes(i) + "\x86r" + fourBytes(i + 1);
    return tuples;
  };
  EXPECT_EQ(fault(tower(10)), "");
  expectFault(tower(30), "too often");
  EXPECT_EQ(fault("N\x85q"s + '\0' + "(" + times("h\0"s, 100000) + "t"), "");
}

// As objects of Python each is made as often as it is held.
TEST(PickleScan, ListsOfTheSameListsMayNot) {
  const auto tower = [](const std::string& bottom, std::size_t levels) {
    std::string lists = bottom + "r" + fourBytes(0);
    for (std::size_t i = 0; i < levels; ++i)
      lists += "](j" + fourBytes(i) + "j" + fourBytes(i) + "er" + fourBytes(i + 1);
    return lists;
  };
  EXPECT_EQ(fault(tower("](K\x01\x65", 10)), "");
  expectFault(tower("](K\x01\x65", 30), "too often");
  expectFault(tower(text(times("x", 100000)), 16), "too often");
  // A value that is no part of a tuple, as an answer is.
  const std::string many = "](" + times("K\x01", 100000) + "\x65q\0"s;
  expectFault(many + "](" + times("h\0"s, 200) + "\x65", "too often");
  expectFault(many + "]" + times("(h\0h\0h\0\x65"s, 100), "too often");
  EXPECT_EQ(fault(text(times("x", 24)) + "q\0]("s + times("h\0"s, 150000) + "\x65"), "");
  EXPECT_EQ(fault(tower(text(times("x", 100000)), 2)), "");
}

// Owner, value's id, fork's id, parent. torch deletes forks of what it takes for its own.
TEST(PickleScan, RRefsThatAnotherWorkerHasForkedMayNot) {
  const std::string name = "ctorch.distributed.rpc\nrref\n(";
  const auto rref = [&](const std::string& ids) { return name + ids + text("Tensor") + "tR"; };
  EXPECT_EQ(fault(rref("K\x02K\x02K\x01K\x01K\x02K\x01"s)), "");
  const std::string forked = "not forked";
  expectFault(rref("K\x02K\x02K\x01K\x00K\x02K\x01"s), forked);
  expectFault(rref("K\x02K\x02K\x01K\x01K\x02K\x00"s), forked);
  expectFault(rref("K\x02K\x02K\x01K\x01K\x02N"s), forked);
  // Numbers from the memo, and a tuple that is made elsewhere.
  EXPECT_EQ(fault("(K\x01q\x00"s + rref("K\x02K\x02K\x01h\x00K\x02h\x00"s) + "t"), "");
  expectFault("(K\x00q\x00"s + rref("K\x02K\x02K\x01h\x00K\x02h\x00"s) + "t", forked);
  expectFault("K\x00q\x00"s + name.substr(0, name.size() - 1) + "h\x00R"s, forked);
}

// Each holds the next, and gets what it holds only afterwards.
TEST(PickleScan, WhatGrowsLaterMayNot) {
  EXPECT_NE(fault("]q\x00]q\x01(h\x00\x65h\x00(K\x01\x65"s), "");
  EXPECT_NE(fault("](]q\x00\x65h\x00(K\x01\x65"s), "");
}

TEST(PickleScan, DeepTypesMayNot) {
  for (const std::string& type :
       {times("List[", 30000) + "int" + times("]", 30000), times("(", 30000), times("a.", 30000),
        times("-", 30000), "a" + times("[b]", 30000), times("not ", 30000), "a]"s}) {
    EXPECT_NE(fault(typed("]", type)), "") << type.substr(0, 20);
  }
  EXPECT_EQ(fault(typed("]", "List[Tuple[int, List[Dict[str, Tensor]], Tuple[()]]]")), "");
  std::string wide = "List[Tuple[int";
  for (int i = 0; i < 1000; ++i)
    wide += ", __torch__.Point";
  EXPECT_EQ(fault(typed("]", wide + "]]")), "");
}

TEST(PickleScan, OtherOpcodesMayNot) {
  EXPECT_NE(fault("(K\x01l"), "");
  EXPECT_NE(fault("NQ"), "");
  EXPECT_NE(fault("}(K\x01u"), "") << "a key without a value";
  EXPECT_NE(fault("t"), "");
  EXPECT_TRUE(faultOf({}, kSender));
}

TEST(PickleScan, TheMemoOnlyCounts) {
  EXPECT_EQ(fault("Nq\x00Nq\x01Nq\x00h\x01"s), "");
  EXPECT_NE(fault("Nq\x01"), "");
  EXPECT_NE(fault("Nr\xff\xff\xff\x7f"), "");
  EXPECT_NE(fault("Nq\x00h\x01"s), "");
}

// The unpickler would read on behind a name that does not end.
TEST(PickleScan, WhatIsCutShortMayNot) {
  const std::string whole = "\x80\x02(" + typed("]q\x00(K\x01\x65"s, "List[int]") + "h\x00t."s;
  EXPECT_FALSE(faultOf(std::span(whole.data(), whole.size()), kSender));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_TRUE(faultOf(std::span(whole.data(), length), kSender)) << "at " << length;
}

}  // namespace
}  // namespace weft::rpc
