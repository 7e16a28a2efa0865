#include "c10d_plugin/core/reduce_kernels.h"

#include "c10d_plugin/core/reduce_loops.h"
#include "transport/base/check.h"

// Sanitizers' instrumented code is the same for all instruction sets: the baseline will do.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define WEFT_X86_VARIANTS 1
#endif

namespace weft::collectives {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): this file is their only user

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

// --- From enums to types.

template <typename E>
void runAverage(const Job& job) {
  using Wide = typename E::Wide;
  if constexpr (std::is_integral_v<Wide> && sizeof(Wide) < sizeof(std::int64_t)) {
    run<Averaged<Wide>, Sum>(job);
  } else {
    run<E, Sum>(job);
  }
}

template <typename E>
void runArithmetic(Reduction reduction, const Job& job) {
  switch (reduction) {
    case Reduction::kAverage:
      return runAverage<E>(job);
    case Reduction::kSum:
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
  job.count *= 2;  // real and imaginary parts are added separately
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
