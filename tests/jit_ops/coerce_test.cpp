// Values and signatures: what is converted, what is refused and in which words.
#include "jit_ops/values/coerce.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include "jit_ops/values/nested_values.h"
#include "jit_ops/values/result_names.h"

namespace weft::ops {
namespace {

c10::TypePtr type(const std::string& text) {
  return torch::jit::ScriptTypeParser().parseType(text);
}

bool fits(at::IValue value, const std::string& text) { return coerce(value, type(text)); }

at::IValue fitted(at::IValue value, const std::string& text) {
  EXPECT_TRUE(coerce(value, type(text))) << text;
  return value;
}

TEST(Fit, IntegersBecomeFloatsAndNothingElse) {
  EXPECT_EQ(fitted(3, "float").toDouble(), 3.0);
  EXPECT_FALSE(fits(3.5, "int"));
  EXPECT_FALSE(fits(true, "int"));
  EXPECT_FALSE(fits(3, "bool"));
  EXPECT_FALSE(fits(3, "str"));
  EXPECT_FALSE(fits(3, "Tensor"));
}

TEST(Fit, RealNumbersBecomeComplexOnes) {
  EXPECT_EQ(fitted(3, "complex").toComplexDouble(), c10::complex<double>(3));
  EXPECT_EQ(fitted(3.5, "complex").toComplexDouble(), c10::complex<double>(3.5));
  EXPECT_FALSE(fits(true, "complex"));
  EXPECT_FALSE(fits(c10::complex<double>(3), "float"));
  EXPECT_TRUE(fitted(1, "Union[complex, int]").isInt());
  EXPECT_TRUE(fitted(1, "Union[complex, float]").isDouble());
}

TEST(Fit, ListsTakeTheirElementsType) {
  const at::IValue floats = fitted(c10::List<std::int64_t>({1, 2}), "List[float]");
  EXPECT_TRUE(floats.isDoubleList());
  const at::IValue empty = fitted(c10::List<at::Tensor>(), "List[int]");
  EXPECT_TRUE(empty.isIntList());
  EXPECT_TRUE(fitted(c10::ivalue::Tuple::create(1, 2), "List[int]").isIntList());
  EXPECT_FALSE(fits(c10::List<std::string>({"a"}), "List[int]"));
}

TEST(Fit, NestedContainers) {
  c10::Dict<std::string, c10::List<std::int64_t>> dict;
  dict.insert("a", c10::List<std::int64_t>({1}));
  const at::IValue value = fitted(dict, "Dict[str, List[float]]");
  EXPECT_EQ(value.toGenericDict().valueType()->annotation_str(), "List[float]");
  EXPECT_TRUE(fits(c10::ivalue::Tuple::create(at::IValue(), 1), "Tuple[Optional[Tensor], float]"));
  EXPECT_FALSE(fits(c10::ivalue::Tuple::create(1), "Tuple[int, int]"));
}

TEST(Fit, OptionalAndAny) {
  EXPECT_TRUE(fits(at::IValue(), "Optional[int]"));
  EXPECT_TRUE(fits(1, "Optional[float]"));
  EXPECT_FALSE(fits(at::IValue(), "int"));
  EXPECT_TRUE(fits("text", "Any"));
}

TEST(Fit, ListsAndDictsOfAnyHaveListsOfWhatIsInThem) {
  const auto anything = [] {
    c10::impl::GenericList inner(c10::AnyType::get());
    inner.push_back(1);
    return inner;
  };
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(anything());
  EXPECT_TRUE(fitted(list, "List[Any]").toListRef()[0].isIntList());
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("a", anything());
  EXPECT_TRUE(fitted(dict, "Dict[str, Any]").toGenericDict().at("a").isIntList());
}

TEST(Names, AreNotLookedForInClassesWhichMayHoldThemselves) {
  const auto code = std::make_shared<torch::jit::CompilationUnit>();
  const auto node = c10::ClassType::create("__torch__.Node", code);
  node->addAttribute("next", c10::OptionalType::create(node));
  EXPECT_EQ(withoutNames(node), node);
  const c10::TypePtr list = c10::ListType::create(node);
  EXPECT_EQ(withoutNames(list), list);
}

TEST(Fit, NamedTuplesTravelPlainAndGetTheirNamesBack) {
  const auto point = c10::TupleType::createNamed(
      c10::QualifiedName("__torch__.Point"), std::vector<std::string>{"x", "n"},
      std::vector<c10::TypePtr>{c10::TensorType::get(), c10::FloatType::get()});
  const auto make = [&](double n) {
    return at::IValue(c10::ivalue::Tuple::createNamed({at::ones({1}), n}, point));
  };
  const auto named = [](const at::IValue& value) {
    return value.type()->expectRef<c10::TupleType>().schema() != nullptr;
  };
  EXPECT_TRUE(named(make(1)));
  at::IValue plain = withoutNames(make(1));
  EXPECT_FALSE(named(plain));
  EXPECT_TRUE(coerce(plain, point));
  EXPECT_TRUE(named(plain));

  c10::List<at::IValue> list(point);
  list.push_back(make(2));
  c10::Dict<at::IValue, at::IValue> dict(c10::StringType::get(), c10::ListType::create(point));
  dict.insert("a", list);
  at::IValue inside = withoutNames(c10::ivalue::Tuple::create(dict, 1));
  const auto dict_type = inside.toTupleRef().elements()[0].type();
  EXPECT_EQ(dict_type->annotation_str(), "Dict[str, List[Tuple[Tensor, float]]]");
  EXPECT_TRUE(coerce(inside, c10::TupleType::create({dict.valueType(), c10::IntType::get()})) ==
              false);
  const auto whole = c10::TupleType::create(
      {c10::DictType::create(c10::StringType::get(), c10::ListType::create(point)),
       c10::IntType::get()});
  EXPECT_TRUE(coerce(inside, whole));
  const auto back = inside.toTupleRef().elements()[0].toGenericDict().at("a").toList().get(0);
  EXPECT_TRUE(named(back));
  EXPECT_EQ(withoutNames(c10::TypePtr(whole))->annotation_str(),
            "Tuple[Dict[str, List[Tuple[Tensor, float]]], int]");
}

TEST(ResultNames, SayWhereNamedTuplesAre) {
  const auto point = c10::TupleType::createNamed(
      c10::QualifiedName("__torch__.m.Point"), std::vector<std::string>{"x", "n"},
      std::vector<c10::TypePtr>{c10::TensorType::get(), c10::FloatType::get()});
  const std::string text = R"(["tuple","__torch__.m.Point",["x","n"],[null,null]])";
  EXPECT_EQ(namesIn(point), text);
  EXPECT_EQ(namesIn(c10::ListType::create(point)), "[\"list\"," + text + "]");
  EXPECT_EQ(namesIn(c10::OptionalType::create(point)), "[\"optional\"," + text + "]");
  EXPECT_EQ(namesIn(c10::DictType::create(c10::StringType::get(), point)),
            "[\"dict\"," + text + "]");
  EXPECT_EQ(namesIn(c10::TupleType::create({c10::IntType::get(), point})),
            "[\"tuple\",null,null,[null," + text + "]]");
  for (const char* plain : {"Tensor", "Tuple[int, Tensor]", "Dict[str, List[int]]", "Any"})
    EXPECT_EQ(namesIn(type(plain)), "") << plain;
}

TEST(ResultNames, AreTakenFromNoOtherValue) {
  const auto found = takeNames(besideNames(3, "[]"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->names, "[]");
  EXPECT_EQ(found->value.toInt(), 3);
  for (const at::IValue& other :
       {at::IValue(), at::IValue(3), at::IValue(c10::ivalue::Tuple::create(1, 2, 3)),
        at::IValue(c10::ivalue::Tuple::create("a", "b", 3))}) {
    EXPECT_FALSE(takeNames(other).has_value());
  }
}

class Arrange : public ::testing::Test {
 protected:
  const c10::FunctionSchema schema_ =
      torch::jit::parseSchema("forward(Tensor x, float by=2., *, str mode=\"a\") -> Tensor");

  std::string problem(std::vector<at::IValue> args, const std::vector<std::string>& names) {
    try {
      bindArguments(schema_, std::move(args), names);
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }
};

TEST_F(Arrange, DefaultsAndNames) {
  const auto plain = bindArguments(schema_, {at::ones({1})}, {});
  ASSERT_EQ(plain.size(), 3U);
  EXPECT_EQ(plain[1].toDouble(), 2.0);
  EXPECT_EQ(plain[2].toStringRef(), "a");
  const auto named = bindArguments(schema_, {at::ones({1}), "b", 3}, {"mode", "by"});
  EXPECT_EQ(named[1].toDouble(), 3.0);
  EXPECT_EQ(named[2].toStringRef(), "b");
}

TEST_F(Arrange, SaysWhatDoesNotFit) {
  EXPECT_NE(problem({3}, {}).find("argument 'x' must be Tensor, got int"), std::string::npos);
  EXPECT_NE(problem({}, {}).find("argument 'x' is missing"), std::string::npos);
  EXPECT_NE(problem({at::ones({1}), 1}, {"of"}).find("has no argument 'of'"), std::string::npos);
  EXPECT_NE(problem({at::ones({1}), 1, 2}, {"by"}).find("'by' is given twice"), std::string::npos);
  EXPECT_NE(problem({at::ones({1}), 1, "a", 4}, {}).find("at most 3 arguments"), std::string::npos);
  EXPECT_NE(problem({c10::ivalue::Tuple::create(1, "a")}, {}).find("got Tuple[int, str]"),
            std::string::npos);
}

TEST_F(Arrange, WhatIsKeywordOnlyComesByName) {
  EXPECT_NE(problem({at::ones({1}), 1, "b"}, {}).find("argument 'mode' must be given by name"),
            std::string::npos);
}

TEST(Sizes, OneNumberStandsForAListOfThatMany) {
  const auto schema =
      torch::jit::parseSchema("f(int[1]? dim=None, float[2] by=[], int[] plain=[]) -> ()");
  const auto bound = bindArguments(schema, {3, 0.5}, {});
  EXPECT_EQ(bound[0].toIntVector(), std::vector<std::int64_t>{3});
  EXPECT_EQ(bound[1].toDoubleVector(), (std::vector<double>{0.5, 0.5}));
  EXPECT_THROW(bindArguments(schema, {3, 0.5, 1}, {}), c10::Error);
  EXPECT_THROW(bindArguments(schema, {3.5}, {}), c10::Error);
  EXPECT_THROW(bindArguments(schema, {true}, {}), c10::Error);
}

// Each holds the one below twice: as a type it would have 2^40 parts.
TEST_F(Arrange, SaysLittleOfATallTuple) {
  at::IValue tower = c10::ivalue::Tuple::create(1);
  for (int level = 0; level < 40; ++level)
    tower = c10::ivalue::Tuple::create(tower, tower);
  EXPECT_LT(problem({tower}, {}).size(), 1000U);
}

}  // namespace
}  // namespace weft::ops
