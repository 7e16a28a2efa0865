#include "c10d_plugin/core/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/base/check.h"

// The loops are inlined into one function per instruction set. Sanitizers' instrumented code is the
// same for all, so there the baseline will do.
#define WEFT_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define WEFT_X86_VARIANTS 1
#endif

// The output may be one of the inputs, element for element, but never shifted: no iteration of a
// loop reads what another one wrote. The compiler cannot know that.
#if defined(__clang__)
#define WEFT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace weft::collectives {
namespace {

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

// --- Elements: how they are stored, and in what they are reduced.

template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  WEFT_INLINE static Wide widen(Stored value) { return value; }
  WEFT_INLINE static Stored narrow(Wide value) { return value; }
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

// --- Loops.

struct Job {
  std::byte* out;
  const std::byte* const* inputs;
  std::size_t input_count;
  std::size_t count;
  int divisor;  // 0: none
};

template <typename E>
WEFT_INLINE typename E::Wide read(const std::byte* from, std::size_t index) {
  return E::widen(loadAt<typename E::Stored>(from, index));
}

template <typename E>
WEFT_INLINE void write(std::byte* to, std::size_t index, typename E::Wide value) {
  storeAt<typename E::Stored>(to, index, E::narrow(value));
}

// inputs[0][i] op … op inputs[N - 1][i], in registers.
template <typename E, typename Op, int N>
WEFT_INLINE typename E::Wide combine(const std::byte* const* inputs, std::size_t index) {
  if constexpr (N == 1) {
    return read<E>(inputs[0], index);
  } else {
    return Op::apply(combine<E, Op, N - 1>(inputs, index), read<E>(inputs[N - 1], index));
  }
}

// Few inputs: one loop, nothing in between.
template <typename E, typename Op, int N, bool kDivide>
WEFT_INLINE void reduceAtOnce(const Job& job) {
  using Wide = typename E::Wide;
  const std::byte* inputs[N];
  for (int k = 0; k < N; ++k)
    inputs[k] = job.inputs[k];
  std::byte* const out = job.out;
  const std::size_t count = job.count;
  if constexpr (kDivide) {
    const Wide divisor = static_cast<Wide>(job.divisor);
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      write<E>(out, i, combine<E, Op, N>(inputs, i) / divisor);
    }
  } else {
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i)
      write<E>(out, i, combine<E, Op, N>(inputs, i));
  }
}

template <typename Wide>
WEFT_INLINE void divideTile(Wide* values, std::size_t count, int by) {
  if constexpr (std::is_arithmetic_v<Wide>) {
    const Wide divisor = static_cast<Wide>(by);
    // More ranks than the type can count: every quotient of |value| < by is 0.
    if constexpr (std::is_integral_v<Wide>) {
      if (static_cast<std::int64_t>(divisor) != by) {
        std::fill_n(values, count, Wide{0});
        return;
      }
    }
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<Wide>(values[i] / divisor);
  }
}

// Any number of inputs: a tile's results stay in the first-level cache until all are in. Small
// tiles: a store and a load that agree in the lowest 12 bits of their addresses get in each other's
// way, and the inputs may lie anywhere.
template <typename E, typename Op>
WEFT_INLINE void reduceTiles(const Job& job) {
  using Wide = typename E::Wide;
  constexpr std::size_t kTile = 1024 / sizeof(Wide);
  alignas(64) Wide tile[kTile];
  for (std::size_t begin = 0; begin < job.count; begin += kTile) {
    const std::size_t size = std::min(kTile, job.count - begin);
    const std::size_t skip = begin * sizeof(typename E::Stored);
    const std::byte* const first = job.inputs[0] + skip;
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i)
      tile[i] = read<E>(first, i);
    for (std::size_t k = 1; k < job.input_count; ++k) {
      const std::byte* const next = job.inputs[k] + skip;
      WEFT_INDEPENDENT
      for (std::size_t i = 0; i < size; ++i)
        tile[i] = Op::apply(tile[i], read<E>(next, i));
    }
    if (job.divisor != 0) divideTile<Wide>(tile, size, job.divisor);
    std::byte* const out = job.out + skip;
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i)
      write<E>(out, i, tile[i]);
  }
}

template <typename E, typename Op, bool kDivide>
WEFT_INLINE void runFew(const Job& job) {
  switch (job.input_count) {
    case 2:
      return reduceAtOnce<E, Op, 2, kDivide>(job);
    case 3:
      return reduceAtOnce<E, Op, 3, kDivide>(job);
    case 4:
      return reduceAtOnce<E, Op, 4, kDivide>(job);
    default:
      return reduceTiles<E, Op>(job);
  }
}

template <typename E, typename Op>
WEFT_INLINE void runLoops(const Job& job) {
  if (job.divisor == 0) return runFew<E, Op, false>(job);
  if constexpr (std::is_same_v<Op, Sum> && std::is_floating_point_v<typename E::Wide>) {
    return runFew<E, Op, true>(job);
  } else {
    return reduceTiles<E, Op>(job);
  }
}

// --- One function per instruction set, chosen once.

template <typename E, typename Op>
void runBaseline(const Job& job) {
  runLoops<E, Op>(job);
}

#ifdef WEFT_X86_VARIANTS
#define WEFT_AVX512 \
  __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define WEFT_AVX2 __attribute__((target("avx2")))

template <typename E, typename Op>
WEFT_AVX512 void runAvx512(const Job& job) {
  runLoops<E, Op>(job);
}

template <typename E, typename Op>
WEFT_AVX2 void runAvx2(const Job& job) {
  runLoops<E, Op>(job);
}

enum class Instructions { kBaseline, kAvx2, kAvx512 };

Instructions instructions() noexcept {
  static const Instructions found = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return Instructions::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? Instructions::kAvx2 : Instructions::kBaseline;
  }();
  return found;
}

template <typename E, typename Op>
void run(const Job& job) {
  switch (instructions()) {
    case Instructions::kAvx512:
      return runAvx512<E, Op>(job);
    case Instructions::kAvx2:
      return runAvx2<E, Op>(job);
    case Instructions::kBaseline:
      return runBaseline<E, Op>(job);
  }
}
#else
template <typename E, typename Op>
void run(const Job& job) {
  runBaseline<E, Op>(job);
}
#endif

// --- From names to types.

template <typename E>
void runArithmetic(Reduction reduction, const Job& job) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      return run<E, Sum>(job);
    case Reduction::kProduct:
      return run<E, Product>(job);
    case Reduction::kMin:
      return run<E, Min>(job);
    case Reduction::kMax:
      return run<E, Max>(job);
    default:
      break;
  }
  if constexpr (std::is_integral_v<typename E::Wide>) {
    switch (reduction) {
      case Reduction::kBitAnd:
        return run<E, BitAnd>(job);
      case Reduction::kBitOr:
        return run<E, BitOr>(job);
      default:
        return run<E, BitXor>(job);
    }
  }
}

void runBool(Reduction reduction, const Job& job) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
    case Reduction::kBitOr:
      return run<Bool, BitOr>(job);
    case Reduction::kBitXor:
      return run<Bool, BitXor>(job);
    default:
      return run<Bool, BitAnd>(job);
  }
}

template <typename T>
void runComplex(Reduction reduction, Job job) {
  if (reduction == Reduction::kProduct) return run<Plain<Complex<T>>, Product>(job);
  job.count *= 2;  // parts are added for themselves
  return run<Plain<T>, Sum>(job);
}

void dispatch(Element element, Reduction reduction, const Job& job) {
  switch (element) {
    case Element::kBytes:
      return;
    case Element::kBool:
      return runBool(reduction, job);
    case Element::kUint8:
      return runArithmetic<Plain<std::uint8_t>>(reduction, job);
    case Element::kInt8:
      return runArithmetic<Plain<std::int8_t>>(reduction, job);
    case Element::kInt16:
      return runArithmetic<Plain<std::int16_t>>(reduction, job);
    case Element::kInt32:
      return runArithmetic<Plain<std::int32_t>>(reduction, job);
    case Element::kInt64:
      return runArithmetic<Plain<std::int64_t>>(reduction, job);
    case Element::kUint16:
      return runArithmetic<Plain<std::uint16_t>>(reduction, job);
    case Element::kUint32:
      return runArithmetic<Plain<std::uint32_t>>(reduction, job);
    case Element::kUint64:
      return runArithmetic<Plain<std::uint64_t>>(reduction, job);
    case Element::kFloat16:
      return runArithmetic<Float16>(reduction, job);
    case Element::kBfloat16:
      return runArithmetic<Bfloat16>(reduction, job);
    case Element::kFloat32:
      return runArithmetic<Plain<float>>(reduction, job);
    case Element::kFloat64:
      return runArithmetic<Plain<double>>(reduction, job);
    case Element::kComplex64:
      return runComplex<float>(reduction, job);
    case Element::kComplex128:
      return runComplex<double>(reduction, job);
  }
}

}  // namespace

void reduceInto(Element element, Reduction reduction, std::byte* out,
                std::span<const std::byte* const> inputs, std::size_t count) {
  WEFT_CHECK(!inputs.empty() && canReduce(element, reduction), "checked by the caller");
  const int divisor = reduction == Reduction::kAverage ? static_cast<int>(inputs.size()) : 0;
  dispatch(element, reduction, {out, inputs.data(), inputs.size(), count, divisor});
}

void divideBy(Element element, std::byte* data, std::size_t count, int by) {
  WEFT_CHECK(by > 0 && canReduce(element, Reduction::kAverage), "checked by the caller");
  const std::byte* const self = data;
  dispatch(element, Reduction::kAverage, {data, &self, 1, count, by});
}

}  // namespace weft::collectives
