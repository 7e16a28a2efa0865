// The arithmetic of reductions against the plain model: every element, every reduction, one to
// seven inputs, sizes around the loops' borders, misaligned addresses, in place.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "c10d_plugin/core/reduce_kernels.h"
#include "tests/c10d_plugin/shm/model.h"

namespace weft::collectives::testing {
namespace {

std::vector<Memory> inputsFor(Element element, std::size_t ranks, std::size_t count) {
  std::vector<Memory> inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    inputs.push_back(fill(element, count * sizeOf(element), 100 * count + rank));
  }
  return inputs;
}

std::vector<const std::byte*> pointersTo(const std::vector<Memory>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const Memory& memory : inputs)
    pointers.push_back(memory.data());
  return pointers;
}

// Negative zeros may stand for zeros.
void expectEqual(Element element, const std::byte* got, const Memory& want, const char* what) {
  for (std::size_t at = 0; at < want.size(); at += sizeOf(element)) {
    ASSERT_EQ(load(element, got + at), load(element, want.data() + at))
        << what << " of " << toString(element) << " at byte " << at;
  }
}

TEST(ReduceKernels, AgreeWithTheModel) {
  for (const Element element : allElements()) {
    for (const Reduction reduction : allReductions()) {
      if (!canReduce(element, reduction)) continue;
      for (std::size_t ranks = 1; ranks <= 7; ++ranks) {
        for (const std::size_t count : {1, 7, 64, 129, 1031}) {
          const std::vector<Memory> inputs = inputsFor(element, ranks, count);
          const Memory want = reduceModel(element, reduction, inputs);
          Memory got(want.size() + 1);  // misaligned by one byte
          reduceInto(element, reduction, got.data() + 1, pointersTo(inputs), count);
          expectEqual(element, got.data() + 1, want, toString(reduction));
        }
      }
    }
  }
}

TEST(ReduceKernels, TheOutputMayBeAnyOfTheInputs) {
  for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kInt8}) {
    for (std::size_t ranks = 1; ranks <= 6; ++ranks) {
      for (std::size_t target = 0; target < ranks; ++target) {
        std::vector<Memory> inputs = inputsFor(element, ranks, 1000);
        const Memory want = reduceModel(element, Reduction::kSum, inputs);
        reduceInto(element, Reduction::kSum, inputs[target].data(), pointersTo(inputs), 1000);
        expectEqual(element, inputs[target].data(), want, "sum");
      }
    }
  }
}

TEST(ReduceKernels, HalvesGoThroughFloat32Unchanged) {
  for (const Element element : {Element::kFloat16, Element::kBfloat16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint16_t> out(all.size());
    const auto* const in = reinterpret_cast<const std::byte*>(all.data());
    reduceInto(element, Reduction::kSum, reinterpret_cast<std::byte*>(out.data()),
               std::span(&in, 1), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(load(element, in + 2 * i).real())) {
        ASSERT_TRUE(std::isnan(
            load(element, reinterpret_cast<const std::byte*>(out.data()) + 2 * i).real()));
      } else {
        ASSERT_EQ(out[i], all[i]) << toString(element);
      }
    }
  }
}

// The sum of two halves in float32 is rounded as if it were exact.
TEST(ReduceKernels, HalvesAreRoundedToTheNearest) {
  for (const Element element : {Element::kFloat16, Element::kBfloat16}) {
    constexpr std::size_t kCount = 200'000;
    std::vector<Memory> inputs(2, Memory(2 * kCount));
    for (std::size_t i = 0; i < kCount; ++i) {
      // Near each other in size, else sums are trivial; finite.
      const auto first = static_cast<std::uint16_t>(mix(i) & 0x7BFF);
      const auto second = static_cast<std::uint16_t>((first ^ (mix(i + kCount) & 0x8FFF)) & 0xFBFF);
      storeAt(inputs[0].data() + 2 * i, first);
      storeAt(inputs[1].data() + 2 * i, second);
    }
    Memory got(2 * kCount);
    reduceInto(element, Reduction::kSum, got.data(), pointersTo(inputs), kCount);
    const Memory want = reduceModel(element, Reduction::kSum, inputs);
    expectEqual(element, got.data(), want, "sum");
  }
}

TEST(ReduceKernels, MinAndMaxPassNanOn) {
  for (const Element element :
       {Element::kFloat16, Element::kBfloat16, Element::kFloat32, Element::kFloat64}) {
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      for (std::size_t ranks = 2; ranks <= 5; ++ranks) {
        for (std::size_t with_nan = 0; with_nan < ranks; ++with_nan) {
          std::vector<Memory> inputs = inputsFor(element, ranks, 40);
          store(element, inputs[with_nan].data() + 11 * sizeOf(element), NAN);
          Memory got(inputs[0].size());
          reduceInto(element, reduction, got.data(), pointersTo(inputs), 40);
          for (std::size_t i = 0; i < 40; ++i) {
            EXPECT_EQ(std::isnan(load(element, got.data() + i * sizeOf(element)).real()), i == 11);
          }
        }
      }
    }
  }
}

TEST(ReduceKernels, IntegersWrapAndDivideTowardZero) {
  const std::vector<std::int8_t> a = {100, -7, -128};
  const std::vector<std::int8_t> b = {100, 0, 0};
  const std::vector<const std::byte*> inputs = {reinterpret_cast<const std::byte*>(a.data()),
                                                reinterpret_cast<const std::byte*>(b.data())};
  std::vector<std::int8_t> out(3);
  auto* const to = reinterpret_cast<std::byte*>(out.data());
  reduceInto(Element::kInt8, Reduction::kSum, to, inputs, 3);
  EXPECT_EQ(out, (std::vector<std::int8_t>{-56, -7, -128}));
  reduceInto(Element::kInt8, Reduction::kAverage, to, inputs, 3);
  EXPECT_EQ(out, (std::vector<std::int8_t>{100, -3, -64}));
}

template <typename T>
void expectAverageOfLargest(Element element) {
  for (const T value : {std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()}) {
    const std::vector<T> in(200, value);  // more than a tile
    for (const std::size_t ranks : {2U, 3U, 300U}) {
      const std::vector<const std::byte*> inputs(ranks,
                                                 reinterpret_cast<const std::byte*>(in.data()));
      std::vector<T> out(in.size());
      reduceInto(element, Reduction::kAverage, reinterpret_cast<std::byte*>(out.data()), inputs,
                 in.size());
      EXPECT_EQ(out, in) << toString(element) << " of " << ranks << " ranks";
    }
  }
}

TEST(ReduceKernels, AveragesOfNarrowIntegersDoNotWrap) {
  expectAverageOfLargest<std::uint8_t>(Element::kUint8);
  expectAverageOfLargest<std::int8_t>(Element::kInt8);
  expectAverageOfLargest<std::int16_t>(Element::kInt16);
  expectAverageOfLargest<std::int32_t>(Element::kInt32);
  expectAverageOfLargest<std::uint16_t>(Element::kUint16);
  expectAverageOfLargest<std::uint32_t>(Element::kUint32);
}

TEST(ReduceKernels, DivideByFinishesAnAverage) {
  std::vector<float> values = {9, -3, 1};
  divideBy(Element::kFloat32, reinterpret_cast<std::byte*>(values.data()), 3, 3);
  EXPECT_EQ(values, (std::vector<float>{3, -1, 1.0F / 3}));
  std::vector<std::int8_t> small = {100, -100};
  divideBy(Element::kInt8, reinterpret_cast<std::byte*>(small.data()), 2, 300);
  EXPECT_EQ(small, (std::vector<std::int8_t>{0, 0}));
}

TEST(Elements, WhatCannotBeReduced) {
  for (const Reduction reduction : allReductions()) {
    EXPECT_FALSE(canReduce(Element::kBytes, reduction));
    EXPECT_TRUE(canReduce(Element::kInt32, reduction));
  }
  EXPECT_FALSE(canReduce(Element::kComplex64, Reduction::kMin));
  EXPECT_FALSE(canReduce(Element::kFloat32, Reduction::kBitOr));
  EXPECT_FALSE(canReduce(Element::kBool, Reduction::kAverage));
  EXPECT_EQ(sizeOf(Element::kComplex128), 16U);
}

}  // namespace
}  // namespace weft::collectives::testing
