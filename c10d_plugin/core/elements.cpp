// The sizes and names of elements and reductions, and which go together.
#include <cstddef>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {

std::size_t sizeOf(Element element) noexcept {
  switch (element) {
    case Element::kBytes:
    case Element::kBool:
    case Element::kUint8:
    case Element::kInt8:
      return 1;
    case Element::kInt16:
    case Element::kUint16:
    case Element::kFloat16:
    case Element::kBfloat16:
      return 2;
    case Element::kInt32:
    case Element::kUint32:
    case Element::kFloat32:
      return 4;
    case Element::kInt64:
    case Element::kUint64:
    case Element::kFloat64:
    case Element::kComplex64:
      return 8;
    case Element::kComplex128:
      return 16;
  }
  return 1;
}

namespace {

enum class Kind { kNone, kBool, kInteger, kReal, kComplex };

Kind kindOf(Element element) noexcept {
  switch (element) {
    case Element::kBytes:
      return Kind::kNone;
    case Element::kBool:
      return Kind::kBool;
    case Element::kUint8:
    case Element::kInt8:
    case Element::kInt16:
    case Element::kInt32:
    case Element::kInt64:
    case Element::kUint16:
    case Element::kUint32:
    case Element::kUint64:
      return Kind::kInteger;
    case Element::kFloat16:
    case Element::kBfloat16:
    case Element::kFloat32:
    case Element::kFloat64:
      return Kind::kReal;
    case Element::kComplex64:
    case Element::kComplex128:
      return Kind::kComplex;
  }
  return Kind::kNone;
}

}  // namespace

bool canReduce(Element element, Reduction reduction) noexcept {
  const Kind kind = kindOf(element);
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

const char* toString(Element element) noexcept {
  switch (element) {
    case Element::kBytes:
      return "bytes";
    case Element::kBool:
      return "bool";
    case Element::kUint8:
      return "uint8";
    case Element::kInt8:
      return "int8";
    case Element::kInt16:
      return "int16";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
    case Element::kUint16:
      return "uint16";
    case Element::kUint32:
      return "uint32";
    case Element::kUint64:
      return "uint64";
    case Element::kFloat16:
      return "float16";
    case Element::kBfloat16:
      return "bfloat16";
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kComplex64:
      return "complex64";
    case Element::kComplex128:
      return "complex128";
  }
  return "unknown element";
}

const char* toString(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kAverage:
      return "average";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kBitAnd:
      return "bitwise and";
    case Reduction::kBitOr:
      return "bitwise or";
    case Reduction::kBitXor:
      return "bitwise xor";
  }
  return "unknown reduction";
}

}  // namespace weft::collectives
