// Elements and operations of reductions: how elements are stored, in which type they are reduced,
// and what an operation does to two of them. For reduce_loops.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Everything is inlined into one function per instruction set (reduce_kernels.cpp).
#define WEFT_INLINE [[gnu::always_inline]] inline

namespace weft::collectives::kernels {

template <typename T>
WEFT_INLINE T loadAt(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
WEFT_INLINE void storeAt(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

template <typename T>
WEFT_INLINE bool isNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return __builtin_isnan(value);
  return false;
}

// --- Elements.

template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  WEFT_INLINE static Wide widen(Stored value) { return value; }
  WEFT_INLINE static Stored narrow(Wide value) { return value; }
};

// An integer narrower than 64 bits whose average is wanted: the sum may not fit it.
template <typename T>
struct Averaged {
  using Stored = T;
  using Wide = std::int64_t;
  WEFT_INLINE static Wide widen(Stored value) { return value; }
  WEFT_INLINE static Stored narrow(Wide value) { return static_cast<Stored>(value); }
};

struct Bool {
  using Stored = std::uint8_t;
  using Wide = std::uint8_t;
  WEFT_INLINE static Wide widen(Stored value) { return value != 0 ? 1 : 0; }
  WEFT_INLINE static Stored narrow(Wide value) { return value; }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Wide = float;
  WEFT_INLINE static Wide widen(Stored value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
  }
  WEFT_INLINE static Stored narrow(Wide value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<Stored>(isNan(value) ? 0x7FC0 : rounded);
  }
};

// IEEE binary16 in integer arithmetic, after Fabian Giesen's "half to float done quick" and its
// inverse with round-to-nearest-even; selects instead of branches, so that it vectorises.
struct Float16 {
  using Stored = std::uint16_t;
  using Wide = float;
  WEFT_INLINE static Wide widen(Stored value) {
    constexpr std::uint32_t kRebias = (127 - 15) << 23;
    const std::uint32_t half = value;
    const std::uint32_t shifted = (half & 0x7FFF) << 13;
    const std::uint32_t normal = shifted + kRebias;
    const std::uint32_t special = normal + kRebias;  // infinities and NaN
    constexpr std::uint32_t kOne = 113U << 23;       // 2^-14, the least normal half
    const std::uint32_t tiny = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + kOne) -
                                                            std::bit_cast<float>(kOne));
    const std::uint32_t exponent = half & 0x7C00;
    const std::uint32_t magnitude = exponent == 0x7C00 ? special : exponent == 0 ? tiny : normal;
    return std::bit_cast<float>(magnitude | ((half & 0x8000) << 16));
  }
  WEFT_INLINE static Stored narrow(Wide value) {
    constexpr std::uint32_t kInfinity = 255U << 23;
    constexpr std::uint32_t kTooLarge = (127U + 16U) << 23;
    constexpr std::uint32_t kLeastNormal = 113U << 23;
    constexpr std::uint32_t kMagic = ((127U - 15U) + (23U - 10U) + 1U) << 23;
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = all & 0x80000000U;
    const std::uint32_t bits = all ^ sign;
    const std::uint32_t special = bits > kInfinity ? 0x7E00 : 0x7C00;
    const std::uint32_t tiny =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kMagic)) -
        kMagic;
    const std::uint32_t odd = (bits >> 13) & 1;
    const std::uint32_t normal = (bits - (112U << 23) + 0xFFF + odd) >> 13;
    const std::uint32_t magnitude = bits >= kTooLarge     ? special
                                    : bits < kLeastNormal ? tiny
                                                          : normal;
    return static_cast<Stored>(magnitude | (sign >> 16));
  }
};

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

// --- Operations.

// Unsigned and at least as wide as int, where arithmetic wraps around instead of being undefined.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

struct Sum {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
  template <typename T>
  WEFT_INLINE static Complex<T> apply(Complex<T> a, Complex<T> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
};

struct Min {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    return a < b || isNan(a) ? a : b;
  }
};

struct Max {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    return a > b || isNan(a) ? a : b;
  }
};

struct BitAnd {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <typename T>
  WEFT_INLINE static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

}  // namespace weft::collectives::kernels
