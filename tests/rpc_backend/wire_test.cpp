#include "rpc_backend/wire/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>

namespace weft::rpc {
namespace {

std::size_t fourBytes(std::uint8_t dtype) { return dtype == 6 ? 4 : 0; }

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TensorMeta dense(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
  TensorMeta meta;
  meta.form = TensorForm::kDense;
  meta.dtype = 6;
  meta.ndim = static_cast<std::uint8_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), meta.sizes.begin());
  std::copy(strides.begin(), strides.end(), meta.strides.begin());
  meta.bytes = denseBytes(sizes, strides, 4).value_or(0);
  return meta;
}

std::vector<std::byte> sample() {
  static const std::string payload = "the payload";
  static const std::string elements(24, 'e');
  std::vector<std::byte> out;
  WireWriter writer(out);
  WireHeader header;
  header.kind = WireKind::kResponse;
  header.type = 0x203;
  header.call_id = 0x123456789abcdef0ULL;
  header.tensor_count = 4;
  header.payload = bytesOf(payload);
  writer.header(header);
  writer.tensor(TensorMeta{});
  TensorMeta inlined = dense({2, 3}, {3, 1});
  inlined.is_inline = true;
  inlined.requires_grad = true;
  inlined.inline_bytes = bytesOf(elements);
  writer.tensor(inlined);
  writer.tensor(dense({500, 7, 1}, {1, 500, 1}));
  TensorMeta pickled;
  pickled.form = TensorForm::kPickled;
  pickled.bytes = 77777;
  writer.tensor(pickled);
  return out;
}

// Reads everything; true when the bytes were a message.
bool readAll(std::span<const std::byte> bytes, std::vector<TensorMeta>* metas = nullptr) {
  WireReader reader(bytes);
  WireHeader header;
  if (!reader.header(header)) return false;
  for (std::uint32_t i = 0; i < header.tensor_count; ++i) {
    TensorMeta meta;
    if (!reader.tensor(meta, &fourBytes)) return false;
    if (metas != nullptr) metas->push_back(meta);
  }
  return reader.finished();
}

TEST(Wire, WhatIsWrittenIsRead) {
  const auto bytes = sample();
  WireReader reader(bytes);
  WireHeader header;
  ASSERT_TRUE(reader.header(header)) << reader.error();
  EXPECT_EQ(header.kind, WireKind::kResponse);
  EXPECT_EQ(header.type, 0x203);
  EXPECT_EQ(header.call_id, 0x123456789abcdef0ULL);
  EXPECT_EQ(header.payload.size(), 11U);
  std::vector<TensorMeta> metas;
  ASSERT_TRUE(readAll(bytes, &metas));
  ASSERT_EQ(metas.size(), 4U);
  EXPECT_EQ(metas[0].form, TensorForm::kUndefined);
  EXPECT_TRUE(metas[1].requires_grad);
  EXPECT_EQ(metas[1].inline_bytes.size(), 24U);
  EXPECT_EQ(metas[1].strides[0], 3);
  EXPECT_EQ(metas[2].strides[1], 500);
  EXPECT_EQ(metas[2].bytes, 14000U);
  EXPECT_EQ(metas[3].bytes, 77777U);
}

TEST(Wire, EveryTruncationIsRefused) {
  const auto bytes = sample();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(readAll(std::span(bytes).first(length))) << "at " << length;
  }
}

TEST(Wire, ALongerHeaderThanItsMessageIsNoticed) {
  auto bytes = sample();
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(readAll(bytes));
}

TEST(Wire, ATensorCountIsNotBelieved) {
  auto bytes = sample();
  const std::uint32_t lie = 0xfffffff0U;
  std::memcpy(bytes.data() + 4, &lie, sizeof lie);
  WireReader reader(bytes);
  WireHeader header;
  EXPECT_FALSE(reader.header(header));
  EXPECT_NE(reader.error().find("more tensors"), std::string::npos);
}

TEST(Wire, AnotherVersionIsRefused) {
  auto bytes = sample();
  bytes[0] = std::byte{2};
  EXPECT_FALSE(readAll(bytes));
}

TEST(DenseBytes, CountsElements) {
  EXPECT_EQ(denseBytes(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{3, 1}, 4), 24U);
  EXPECT_EQ(denseBytes(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{1, 2}, 4), 24U);
  EXPECT_EQ(denseBytes(std::vector<std::int64_t>{}, std::vector<std::int64_t>{}, 8), 8U);
  EXPECT_EQ(denseBytes(std::vector<std::int64_t>{0, 5}, std::vector<std::int64_t>{5, 1}, 8), 0U);
  EXPECT_EQ(denseBytes(std::vector<std::int64_t>{4, 1}, std::vector<std::int64_t>{1, 99}, 8), 32U);
}

TEST(DenseBytes, RefusesWhatIsNotGapless) {
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{4, 1}, 4));
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{0, 1}, 4));
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{2, 2}, std::vector<std::int64_t>{1, 1}, 4));
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{2}, std::vector<std::int64_t>{-1}, 4));
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{-2}, std::vector<std::int64_t>{1}, 4));
}

TEST(DenseBytes, RefusesOverflow) {
  const std::int64_t half = std::int64_t{1} << 40;
  EXPECT_FALSE(
      denseBytes(std::vector<std::int64_t>{half, half}, std::vector<std::int64_t>{half, 1}, 1));
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_FALSE(denseBytes(std::vector<std::int64_t>{most}, std::vector<std::int64_t>{1}, 8));
}

}  // namespace
}  // namespace weft::rpc
