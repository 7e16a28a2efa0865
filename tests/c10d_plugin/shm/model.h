// What the collectives must come to, written the slow and plain way: every element as a complex
// number of doubles. Exact for the small values that fill() makes.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives::testing {

using Value = std::complex<double>;
using Memory = std::vector<std::byte>;

inline const std::vector<Element>& allElements() {
  static const std::vector<Element> elements = {
      Element::kBool,    Element::kUint8,     Element::kInt8,      Element::kInt16,
      Element::kInt32,   Element::kInt64,     Element::kUint16,    Element::kUint32,
      Element::kUint64,  Element::kFloat16,   Element::kBfloat16,  Element::kFloat32,
      Element::kFloat64, Element::kComplex64, Element::kComplex128};
  return elements;
}

inline const std::vector<Reduction>& allReductions() {
  static const std::vector<Reduction> reductions = {
      Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kMin,
      Reduction::kMax, Reduction::kBitAnd,  Reduction::kBitOr,   Reduction::kBitXor};
  return reductions;
}

// A binary float with `digits` significant bits, the least exponent of normals, and the largest
// value: the nearest to `value`, ties to even.
inline double roundTo(double value, int digits, int least, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = 0.1… * 2^exponent
  const int unit = std::max(exponent, least + 1) - digits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::abs(rounded) > largest) return std::copysign(INFINITY, value);
  return rounded;
}

inline std::uint16_t toFloat16(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7E00;
  const double size = std::abs(roundTo(value, 11, -14, 65504));
  if (std::isinf(size)) return sign | 0x7C00;
  if (size < std::ldexp(1, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(size, 24));
  int exponent = 0;
  const double mantissa = std::frexp(size, &exponent);
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) |
                                    (static_cast<int>(std::ldexp(mantissa, 11)) & 0x3FF));
}

inline double fromFloat16(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 0x3FF;
  double size = 0;
  if (exponent == 31) {
    size = mantissa != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    size = std::ldexp(mantissa, -24);
  } else {
    size = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (half & 0x8000) != 0 ? -size : size;
}

inline float toFloat(double value) { return static_cast<float>(value); }

inline std::uint16_t toBfloat16(double value) {
  const float rounded =
      toFloat(roundTo(value, 8, -126, static_cast<double>(std::numeric_limits<float>::max())));
  std::uint32_t bits = 0;
  std::memcpy(&bits, &rounded, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

inline double fromBfloat16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
T loadAt(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void storeAt(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline Value load(Element element, const std::byte* from) {
  switch (element) {
    case Element::kBytes:
    case Element::kUint8:
      return static_cast<double>(loadAt<std::uint8_t>(from));
    case Element::kBool:
      return loadAt<std::uint8_t>(from) != 0 ? 1.0 : 0.0;
    case Element::kInt8:
      return static_cast<double>(loadAt<std::int8_t>(from));
    case Element::kInt16:
      return static_cast<double>(loadAt<std::int16_t>(from));
    case Element::kInt32:
      return static_cast<double>(loadAt<std::int32_t>(from));
    case Element::kInt64:
      return static_cast<double>(loadAt<std::int64_t>(from));
    case Element::kUint16:
      return static_cast<double>(loadAt<std::uint16_t>(from));
    case Element::kUint32:
      return static_cast<double>(loadAt<std::uint32_t>(from));
    case Element::kUint64:
      return static_cast<double>(loadAt<std::uint64_t>(from));
    case Element::kFloat16:
      return fromFloat16(loadAt<std::uint16_t>(from));
    case Element::kBfloat16:
      return fromBfloat16(loadAt<std::uint16_t>(from));
    case Element::kFloat32:
      return static_cast<double>(loadAt<float>(from));
    case Element::kFloat64:
      return loadAt<double>(from);
    case Element::kComplex64:
      return {loadAt<float>(from), loadAt<float>(from + 4)};
    case Element::kComplex128:
      return {loadAt<double>(from), loadAt<double>(from + 8)};
  }
  return 0;
}

// Integers wrap around.
inline void store(Element element, std::byte* to, Value value) {
  const double real = value.real();
  const auto whole = [&] { return static_cast<std::int64_t>(real); };
  switch (element) {
    case Element::kBytes:
    case Element::kBool:
    case Element::kUint8:
    case Element::kInt8:
      return storeAt(to, static_cast<std::uint8_t>(whole()));
    case Element::kInt16:
    case Element::kUint16:
      return storeAt(to, static_cast<std::uint16_t>(whole()));
    case Element::kInt32:
    case Element::kUint32:
      return storeAt(to, static_cast<std::uint32_t>(whole()));
    case Element::kInt64:
    case Element::kUint64:
      return storeAt(to, static_cast<std::uint64_t>(whole()));
    case Element::kFloat16:
      return storeAt(to, toFloat16(real));
    case Element::kBfloat16:
      return storeAt(to, toBfloat16(real));
    case Element::kFloat32:
      return storeAt(to, toFloat(real));
    case Element::kFloat64:
      return storeAt(to, real);
    case Element::kComplex64:
      storeAt(to, toFloat(real));
      return storeAt(to + 4, toFloat(value.imag()));
    case Element::kComplex128:
      storeAt(to, real);
      return storeAt(to + 8, value.imag());
  }
}

inline Value combine(Element element, Reduction reduction, Value a, Value b) {
  const bool is_bool = element == Element::kBool;
  const auto bits = [](Value value) { return static_cast<std::int64_t>(value.real()); };
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      return is_bool ? Value(a != 0.0 || b != 0.0 ? 1.0 : 0.0) : a + b;
    case Reduction::kProduct:
      return is_bool ? Value(a != 0.0 && b != 0.0 ? 1.0 : 0.0) : a * b;
    case Reduction::kMin:
      return a.real() < b.real() ? a : b;
    case Reduction::kMax:
      return a.real() > b.real() ? a : b;
    case Reduction::kBitAnd:
      return static_cast<double>(bits(a) & bits(b));
    case Reduction::kBitOr:
      return static_cast<double>(bits(a) | bits(b));
    case Reduction::kBitXor:
      return static_cast<double>(bits(a) ^ bits(b));
  }
  return 0;
}

inline Memory reduceModel(Element element, Reduction reduction, const std::vector<Memory>& inputs) {
  Memory out(inputs[0].size());
  const std::size_t width = sizeOf(element);
  for (std::size_t at = 0; at < out.size(); at += width) {
    Value value = load(element, inputs[0].data() + at);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      value = combine(element, reduction, value, load(element, inputs[k].data() + at));
    }
    if (reduction == Reduction::kAverage) {
      const auto ranks = static_cast<double>(inputs.size());
      // Where it is reduced in float32 it is divided there.
      const bool narrow = element == Element::kFloat16 || element == Element::kBfloat16;
      value = {narrow ? static_cast<double>(toFloat(value.real() / ranks)) : value.real() / ranks,
               value.imag() / ranks};
    }
    store(element, out.data() + at, value);
  }
  return out;
}

// Small whole numbers that look random: sums and products of five ranks are exact in every type.
inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7FB5D329728EA185ULL;
  value = (value ^ (value >> 27)) * 0x81DADEF4BC2DD44DULL;
  return value ^ (value >> 33);
}

inline Memory fill(Element element, std::size_t bytes, std::uint64_t seed) {
  Memory memory(bytes);
  const std::size_t width = sizeOf(element);
  const bool is_signed = element == Element::kInt8 || element == Element::kInt16 ||
                         element == Element::kInt32 || element == Element::kInt64 ||
                         element >= Element::kFloat16;
  for (std::size_t at = 0; at + width <= bytes; at += width) {
    const std::uint64_t random = mix(seed * 0x9E3779B97F4A7C15ULL + at);
    double real = static_cast<double>(random % 4);
    if (is_signed && (random & 0x100) != 0) real = -real;
    if (element == Element::kBool) real = static_cast<double>(random % 2);
    if (element == Element::kBytes) real = static_cast<double>(random % 256);
    const double imaginary = static_cast<double>((random >> 16) % 3) - 1;
    store(element, memory.data() + at, {real, imaginary});
  }
  return memory;
}

}  // namespace weft::collectives::testing
