// The sizes and names of elements and reductions, and which go together.
#include <array>
#include <cstddef>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {
namespace {

enum class Kind { kNone, kBool, kInteger, kReal, kComplex };

struct ElementTraits {
  const char* name;
  std::size_t size;
  Kind kind;
};

// By Element.
constexpr std::array kElements{
    ElementTraits{"bytes", 1, Kind::kNone},        ElementTraits{"bool", 1, Kind::kBool},
    ElementTraits{"uint8", 1, Kind::kInteger},     ElementTraits{"int8", 1, Kind::kInteger},
    ElementTraits{"int16", 2, Kind::kInteger},     ElementTraits{"int32", 4, Kind::kInteger},
    ElementTraits{"int64", 8, Kind::kInteger},     ElementTraits{"uint16", 2, Kind::kInteger},
    ElementTraits{"uint32", 4, Kind::kInteger},    ElementTraits{"uint64", 8, Kind::kInteger},
    ElementTraits{"float16", 2, Kind::kReal},      ElementTraits{"bfloat16", 2, Kind::kReal},
    ElementTraits{"float32", 4, Kind::kReal},      ElementTraits{"float64", 8, Kind::kReal},
    ElementTraits{"complex64", 8, Kind::kComplex}, ElementTraits{"complex128", 16, Kind::kComplex},
};
static_assert(kElements.size() == static_cast<std::size_t>(Element::kComplex128) + 1);

// By Reduction.
constexpr std::array kReductions{"sum", "average",     "product",    "min",
                                 "max", "bitwise and", "bitwise or", "bitwise xor"};
static_assert(kReductions.size() == static_cast<std::size_t>(Reduction::kBitXor) + 1);

// A peer may have written the value.
const ElementTraits& traitsOf(Element element) noexcept {
  static constexpr ElementTraits kUnknown{"unknown element", 1, Kind::kNone};
  const auto index = static_cast<std::size_t>(element);
  return index < kElements.size() ? kElements[index] : kUnknown;
}

}  // namespace

std::size_t sizeOf(Element element) noexcept { return traitsOf(element).size; }

const char* toString(Element element) noexcept { return traitsOf(element).name; }

const char* toString(Reduction reduction) noexcept {
  const auto index = static_cast<std::size_t>(reduction);
  return index < kReductions.size() ? kReductions[index] : "unknown reduction";
}

bool canReduce(Element element, Reduction reduction) noexcept {
  const Kind kind = traitsOf(element).kind;
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kProduct:
      return kind != Kind::kNone;
    case Reduction::kAverage:
      return kind != Kind::kNone && kind != Kind::kBool;
    case Reduction::kMin:
    case Reduction::kMax:
      return kind == Kind::kBool || kind == Kind::kInteger || kind == Kind::kReal;
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      return kind == Kind::kBool || kind == Kind::kInteger;
  }
  return false;
}

}  // namespace weft::collectives
