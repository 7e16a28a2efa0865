// Every operation of a Collectives beside a model that computes the result in double.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "gtest/gtest.h"
#include "tests/c10d_plugin/net/world.h"

namespace weft::collectives {

// One rank's part in a series of operations; every rank makes the same ones in the same order.
class Checker {
 public:
  explicit Checker(Collectives& collectives)
      : collectives_(collectives), rank_(collectives.rank()), size_(collectives.size()) {}

  void everything() {
    for (const std::size_t count : {0, 1, 3, 1000, 40'001}) {
      if (::testing::Test::HasFailure()) return;  // one is enough; the group is of no more use
      barrier();
      for (int root = 0; root < size_; ++root) {
        broadcast(count, root);
        gather(count, root);
        scatter(count, root);
        reduce(Element::kFloat32, Reduction::kSum, count, root);
      }
      allGather(count);
      allToAll(count);
      allReduce(Element::kFloat32, Reduction::kSum, count);
      reduceScatter(Element::kFloat32, Reduction::kSum, count);
    }
    reductions();
    // Several blocks of everything, and their remainders.
    const std::size_t large = kSanitized ? 200'003 : 700'003;
    allReduce(Element::kFloat32, Reduction::kSum, 4 * large);
    allReduce(Element::kFloat32, Reduction::kSum, large);
    allReduce(Element::kBfloat16, Reduction::kAverage, large);
    reduce(Element::kFloat32, Reduction::kAverage, large, size_ - 1);
    reduceScatter(Element::kFloat64, Reduction::kAverage, large / 2);
    for (const int root : {0, size_ - 1}) {
      broadcast(large, root);
      broadcast(7 * large, root);
    }
    allGather(large / 4);
    allToAll(large / 4);
    barrier();
  }

  void reductions() {
    for (int e = 0; e <= static_cast<int>(Element::kComplex128); ++e) {
      for (int r = 0; r <= static_cast<int>(Reduction::kBitXor); ++r) {
        const auto element = static_cast<Element>(e);
        const auto reduction = static_cast<Reduction>(r);
        if (::testing::Test::HasFailure()) return;
        if (!canReduce(element, reduction)) {
          Call call = next(element, reduction);
          std::vector<std::byte> data(16 * 4);
          EXPECT_EQ(collectives_.allReduce(call, data).code(), ErrorCode::kInvalidArgument);
          continue;
        }
        allReduce(element, reduction, 37);
        if ((e + r) % 3 != 0) continue;  // the arithmetic is the same; the ways differ
        reduce(element, reduction, 5000, size_ / 2);
        reduceScatter(element, reduction, 41);
      }
    }
  }

  void barrier() { ok(collectives_.barrier(next()), "barrier"); }

  void broadcast(std::size_t count, int root) {
    std::vector<std::byte> data = bytes(count, rank_);
    ok(collectives_.broadcast(next(), data, root), "broadcast");
    EXPECT_EQ(data, bytes(count, root)) << where("broadcast", count);
  }

  void allGather(std::size_t count) {
    std::vector<std::vector<std::byte>> parts(size_);
    std::vector<Bytes> out;
    for (int r = 0; r < size_; ++r) {
      parts[r].resize(uneven(count, r));
      out.emplace_back(parts[r]);
    }
    const std::vector<std::byte> in = bytes(uneven(count, rank_), rank_);
    ok(collectives_.allGather(next(), in, out), "all_gather");
    for (int r = 0; r < size_; ++r)
      EXPECT_EQ(parts[r], bytes(uneven(count, r), r)) << where("all_gather", count);
  }

  void gather(std::size_t count, int root) {
    std::vector<std::vector<std::byte>> parts(size_);
    std::vector<Bytes> out;
    for (int r = 0; r < size_ && rank_ == root; ++r) {
      parts[r].resize(uneven(count, r));
      out.emplace_back(parts[r]);
    }
    const std::vector<std::byte> in = bytes(uneven(count, rank_), rank_);
    ok(collectives_.gather(next(), in, out, root), "gather");
    for (int r = 0; r < size_ && rank_ == root; ++r)
      EXPECT_EQ(parts[r], bytes(uneven(count, r), r)) << where("gather", count);
  }

  void scatter(std::size_t count, int root) {
    std::vector<std::vector<std::byte>> parts;
    std::vector<ConstBytes> in;
    for (int r = 0; r < size_ && rank_ == root; ++r)
      parts.push_back(bytes(uneven(count, r), r + 100));
    for (const auto& part : parts)
      in.emplace_back(part);
    std::vector<std::byte> out(uneven(count, rank_));
    ok(collectives_.scatter(next(), in, out, root), "scatter");
    EXPECT_EQ(out, bytes(uneven(count, rank_), rank_ + 100)) << where("scatter", count);
  }

  void allToAll(std::size_t count) {
    std::vector<std::vector<std::byte>> from;
    std::vector<std::vector<std::byte>> to;
    std::vector<ConstBytes> in;
    std::vector<Bytes> out;
    for (int r = 0; r < size_; ++r) {
      from.push_back(bytes(between(count, rank_, r), rank_ * 16 + r));
      to.emplace_back(between(count, r, rank_));
    }
    for (int r = 0; r < size_; ++r) {
      in.emplace_back(from[r]);
      out.emplace_back(to[r]);
    }
    ok(collectives_.allToAll(next(), in, out), "all_to_all");
    for (int r = 0; r < size_; ++r)
      EXPECT_EQ(to[r], bytes(between(count, r, rank_), r * 16 + rank_))
          << where("all_to_all", count);
  }

  void allReduce(Element element, Reduction reduction, std::size_t count) {
    std::vector<std::byte> data = values(element, count, rank_);
    ok(collectives_.allReduce(next(element, reduction), data), "all_reduce");
    expectReduced(element, reduction, data, 0, "all_reduce");
  }

  void reduce(Element element, Reduction reduction, std::size_t count, int root) {
    std::vector<std::byte> data = values(element, count, rank_);
    ok(collectives_.reduce(next(element, reduction), data, root), "reduce");
    if (rank_ == root) {
      expectReduced(element, reduction, data, 0, "reduce");
    } else {
      EXPECT_EQ(data, values(element, count, rank_)) << where("reduce", count);
    }
  }

  void reduceScatter(Element element, Reduction reduction, std::size_t count) {
    // Rank r gets a share of its own size.
    std::size_t total = 0;
    std::vector<std::size_t> from;
    for (int r = 0; r < size_; ++r) {
      from.push_back(total);
      total += uneven(count, r);
    }
    const std::vector<std::byte> all = values(element, total, rank_);
    const std::size_t bytes_each = sizeOf(element);
    std::vector<ConstBytes> in;
    for (int r = 0; r < size_; ++r)
      in.push_back(ConstBytes(all).subspan(from[r] * bytes_each, uneven(count, r) * bytes_each));
    std::vector<std::byte> out(uneven(count, rank_) * bytes_each);
    ok(collectives_.reduceScatter(next(element, reduction), in, out), "reduce_scatter");
    expectReduced(element, reduction, out, from[rank_], "reduce_scatter");
  }

 private:
  Call next(Element element = Element::kBytes, Reduction reduction = Reduction::kSum) {
    return {soon(), sequence_++, element, reduction};
  }
  static std::size_t uneven(std::size_t count, int rank) {
    return count + (count > 2 ? static_cast<std::size_t>(rank % 3) : 0);
  }
  static std::size_t between(std::size_t count, int from, int to) {
    return (from + to) % 3 == 0 ? 0 : count + static_cast<std::size_t>(from * 5 + to);
  }
  static std::vector<std::byte> bytes(std::size_t count, int seed) {
    std::vector<std::byte> data(count);
    for (std::size_t i = 0; i < count; ++i)
      data[i] =
          static_cast<std::byte>((i * 7 + i / 253 + static_cast<std::size_t>(seed) * 37) & 0xFF);
    return data;
  }
  void ok(const Error& error, const std::string& what) const {
    EXPECT_FALSE(error) << "rank " << rank_ << " of " << size_ << ", " << what << ": "
                        << error.text();
  }
  std::string where(const std::string& what, std::size_t count) const {
    return what + " of " + std::to_string(count) + ", rank " + std::to_string(rank_) + " of " +
           std::to_string(size_);
  }

  static bool isReal(Element e) { return e >= Element::kFloat16 && e <= Element::kFloat64; }
  static bool isComplex(Element e) { return e >= Element::kComplex64; }
  static std::int64_t valueOf(int rank, std::size_t i) {
    return static_cast<std::int64_t>((i * 5 + static_cast<std::size_t>(rank) * 3 + i / 7) % 4);
  }

  static float toFloat(std::uint16_t bits, bool brain) {
    if (brain) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
    const int exponent = (bits >> 10) & 0x1F;
    const float mantissa = static_cast<float>(bits & 0x3FF) / 1024.0F;
    const float size =
        exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0F + mantissa, exponent - 15);
    return (bits & 0x8000) != 0 ? -size : size;
  }
  // Of small whole numbers, which are exact.
  static std::uint16_t toHalf(float value, bool brain) {
    if (brain) return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
    if (value == 0) return 0;
    int exponent = 0;
    const float mantissa = std::frexp(value, &exponent) * 2;
    return static_cast<std::uint16_t>(((exponent - 1 + 15) << 10) |
                                      static_cast<int>((mantissa - 1) * 1024));
  }

  template <typename T>
  static void put(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof(T));
  }
  template <typename T>
  static T get(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }

  static std::vector<std::byte> values(Element element, std::size_t count, int rank) {
    std::vector<std::byte> data(count * sizeOf(element));
    for (std::size_t i = 0; i < count; ++i)
      encode(element, data.data() + i * sizeOf(element), valueOf(rank, i));
    return data;
  }

  static void encode(Element element, std::byte* at, std::int64_t v) {
    const auto f = static_cast<float>(v);
    switch (element) {
      case Element::kBool:
        return put<std::uint8_t>(at, v % 2 != 0);
      case Element::kFloat16:
      case Element::kBfloat16:
        return put(at, toHalf(f, element == Element::kBfloat16));
      case Element::kFloat32:
        return put(at, f);
      case Element::kFloat64:
        return put(at, static_cast<double>(v));
      case Element::kComplex64:
        return put(at, std::complex<float>(f, f - 1));
      case Element::kComplex128:
        return put(at, std::complex<double>(static_cast<double>(v), static_cast<double>(v - 1)));
      default:
        std::memcpy(at, &v, sizeOf(element));  // little-endian integers
    }
  }

  static std::complex<double> decode(Element element, const std::byte* at) {
    switch (element) {
      case Element::kFloat16:
      case Element::kBfloat16:
        return toFloat(get<std::uint16_t>(at), element == Element::kBfloat16);
      case Element::kFloat32:
        return get<float>(at);
      case Element::kFloat64:
        return get<double>(at);
      case Element::kComplex64:
        return std::complex<double>(get<std::complex<float>>(at));
      case Element::kComplex128:
        return get<std::complex<double>>(at);
      default: {
        std::int64_t v = 0;
        std::memcpy(&v, at, sizeOf(element));
        if (element == Element::kInt8) v = static_cast<std::int8_t>(v);
        return static_cast<double>(v);
      }
    }
  }

  std::complex<double> expected(Element element, Reduction reduction, std::size_t i) const {
    std::vector<std::byte> memory(16);
    std::complex<double> all;
    for (int r = 0; r < size_; ++r) {
      encode(element, memory.data(), valueOf(r, i));
      const std::complex<double> one = decode(element, memory.data());
      if (r == 0) {
        all = one;
        continue;
      }
      const auto a = static_cast<std::int64_t>(all.real());
      const auto b = static_cast<std::int64_t>(one.real());
      switch (reduction) {
        case Reduction::kSum:
        case Reduction::kAverage:
          all += one;
          break;
        case Reduction::kProduct:
          all *= one;
          break;
        case Reduction::kMin:
          all = std::min(all.real(), one.real());
          break;
        case Reduction::kMax:
          all = std::max(all.real(), one.real());
          break;
        case Reduction::kBitAnd:
          all = static_cast<double>(a & b);
          break;
        case Reduction::kBitOr:
          all = static_cast<double>(a | b);
          break;
        case Reduction::kBitXor:
          all = static_cast<double>(a ^ b);
          break;
      }
    }
    if (element == Element::kBool && reduction != Reduction::kAverage)
      return all.real() != 0 ? 1.0 : 0.0;
    if (reduction == Reduction::kAverage) {
      all /= size_;
      if (!isReal(element) && !isComplex(element)) all = std::trunc(all.real());
    }
    if (element == Element::kInt8)
      all = static_cast<std::int8_t>(static_cast<std::int64_t>(all.real()));
    return all;
  }

  void expectReduced(Element element, Reduction reduction, const std::vector<std::byte>& data,
                     std::size_t first, const std::string& what) const {
    const double near = element == Element::kBfloat16  ? 1.0 / 128
                        : element == Element::kFloat16 ? 1.0 / 1024
                                                       : 1e-6;
    const std::size_t each = sizeOf(element);
    for (std::size_t i = 0; i * each < data.size(); ++i) {
      const std::complex<double> want = expected(element, reduction, first + i);
      const std::complex<double> got = decode(element, data.data() + i * each);
      ASSERT_LE(std::abs(got - want), near * std::abs(want))
          << where(what, data.size() / each) << ", " << toString(element) << " by "
          << toString(reduction) << ", element " << i << ": " << got << " for " << want;
    }
  }

  Collectives& collectives_;
  const int rank_;
  const int size_;
  std::uint64_t sequence_ = 0;
};

}  // namespace weft::collectives
