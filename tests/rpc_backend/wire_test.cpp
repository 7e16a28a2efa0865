#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wire_writer.h"

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
  meta.bytes = layoutOf(sizes, strides, 4).value_or(TensorLayout{}).elements;
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
  header.tensor_count = 5;
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
  TensorMeta sparse;
  sparse.form = TensorForm::kSparse;
  sparse.layout = 1;
  sparse.coalesced = true;
  sparse.ndim = 2;
  sparse.sizes = {9, 0};
  writer.tensor(sparse);
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
  ASSERT_EQ(metas.size(), 5U);
  EXPECT_EQ(metas[0].form, TensorForm::kUndefined);
  EXPECT_TRUE(metas[1].requires_grad);
  EXPECT_EQ(metas[1].inline_bytes.size(), 24U);
  EXPECT_EQ(metas[1].strides[0], 3);
  EXPECT_EQ(metas[2].strides[1], 500);
  EXPECT_EQ(metas[2].bytes, 14000U);
  EXPECT_EQ(metas[3].bytes, 77777U);
  EXPECT_EQ(metas[4].layout, 1);
  EXPECT_TRUE(metas[4].coalesced);
  EXPECT_EQ(metas[4].sizes[0], 9);
  EXPECT_EQ(metas[4].bytes, 0U);
}

TEST(Wire, ASparseTensorHasSizesOnly) {
  const auto refusal = [](void (*change)(TensorMeta&)) {
    std::vector<std::byte> bytes;
    WireWriter writer(bytes);
    WireHeader header;
    header.tensor_count = 1;
    writer.header(header);
    TensorMeta sparse;
    sparse.form = TensorForm::kSparse;
    sparse.ndim = 1;
    change(sparse);
    writer.tensor(sparse);
    WireReader reader(bytes);
    TensorMeta read;
    return reader.header(header) && reader.tensor(read, &fourBytes) ? "" : reader.error();
  };
  EXPECT_EQ(refusal([](TensorMeta&) {}), "");
  EXPECT_EQ(refusal([](TensorMeta& meta) { meta.sizes[0] = -1; }),
            "a sparse tensor's size is negative");
  EXPECT_EQ(refusal([](TensorMeta& meta) { meta.gapped = true; }),
            "a sparse tensor has flags of a dense one");
  EXPECT_EQ(refusal([](TensorMeta& meta) { meta.is_inline = true; }),
            "a sparse tensor has flags of a dense one");
}

std::vector<std::byte> lent(WireKind kind, bool said, bool is_inline = false) {
  std::vector<std::byte> bytes;
  WireWriter writer(bytes);
  WireHeader header;
  header.kind = kind;
  header.tensor_count = 1;
  header.device_memory = said;
  writer.header(header);
  TensorMeta meta;
  meta.form = TensorForm::kDevice;
  meta.dtype = 6;
  meta.ndim = 1;
  meta.sizes[0] = 2;
  meta.strides[0] = 1;
  meta.is_inline = is_inline;
  writer.tensor(meta);
  const std::array<std::byte, 3> token{std::byte{1}, std::byte{2}, std::byte{3}};
  writer.deviceToken(token);
  return bytes;
}

TEST(Wire, ATensorInDeviceMemoryHasAToken) {
  for (const auto kind : {WireKind::kRequest, WireKind::kResponse}) {
    const auto bytes = lent(kind, true);
    WireReader reader(bytes);
    WireHeader header;
    TensorMeta meta;
    std::span<const std::byte> token;
    ASSERT_TRUE(reader.header(header) && reader.tensor(meta, &fourBytes)) << reader.error();
    EXPECT_EQ(header.kind, kind);
    EXPECT_EQ(meta.form, TensorForm::kDevice);
    EXPECT_EQ(meta.bytes, 8U);
    ASSERT_TRUE(reader.deviceToken(token));
    EXPECT_EQ(token.size(), 3U);
    EXPECT_TRUE(reader.finished());
  }
  EXPECT_FALSE(readAll(lent(WireKind::kControl, true)));
  EXPECT_FALSE(readAll(lent(WireKind::kRequest, false)));
  EXPECT_FALSE(readAll(lent(WireKind::kRequest, true, true)));
}

TEST(Wire, OnlyARequestHasATimeout) {
  for (const auto kind :
       {WireKind::kRequest, WireKind::kResponse, WireKind::kControl, WireKind::kControlAck}) {
    for (const std::uint32_t timeout : {0U, 1U, 0xffffffffU}) {
      std::vector<std::byte> bytes;
      WireHeader header;
      header.kind = kind;
      header.timeout_ms = timeout;
      WireWriter(bytes).header(header);
      WireReader reader(bytes);
      WireHeader read;
      ASSERT_EQ(reader.header(read), timeout == 0 || kind == WireKind::kRequest);
      EXPECT_TRUE(!reader.error().empty() || read.timeout_ms == timeout);
    }
  }
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

TEST(Wire, SoManyTensorsAndNoMore) {
  for (const std::uint32_t count : {kMaxTensors, kMaxTensors + 1}) {
    std::vector<std::byte> bytes;
    WireHeader header;
    header.tensor_count = count;
    WireWriter(bytes).header(header);
    bytes.resize(bytes.size() + count);  // undefined ones
    EXPECT_EQ(readAll(bytes), count == kMaxTensors);
  }
}

TEST(Wire, AnotherVersionIsRefused) {
  auto bytes = sample();
  bytes[0] = std::byte{kWireVersion - 1};
  EXPECT_FALSE(readAll(bytes));
}

TEST(Wire, ATypeThatTorchsEnumCannotHoldIsRefused) {
  constexpr std::size_t kType = 2;  // after the version and the kind
  auto bytes = sample();
  bytes[kType] = std::byte{0xff};
  bytes[kType + 1] = std::byte{0x03};
  EXPECT_TRUE(readAll(bytes));
  bytes[kType] = std::byte{0x00};
  bytes[kType + 1] = std::byte{0x04};
  EXPECT_FALSE(readAll(bytes));
}

using Numbers = std::vector<std::int64_t>;

// Nothing when the layout has gaps.
std::optional<std::uint64_t> denseBytes(const Numbers& sizes, const Numbers& strides,
                                        std::size_t item_size) {
  const auto layout = layoutOf(sizes, strides, item_size);
  if (!layout || !layout->isDense()) return std::nullopt;
  return layout->elements;
}

TEST(TensorLayout, CountsElements) {
  EXPECT_EQ(denseBytes({2, 3}, {3, 1}, 4), 24U);
  EXPECT_EQ(denseBytes({2, 3}, {1, 2}, 4), 24U);
  EXPECT_EQ(denseBytes({}, {}, 8), 8U);
  EXPECT_EQ(denseBytes({0, 5}, {5, 1}, 8), 0U);
  EXPECT_EQ(denseBytes({4, 1}, {1, 99}, 8), 32U);
}

TEST(TensorLayout, WhatIsNotGaplessIsNotDense) {
  EXPECT_FALSE(denseBytes({2, 3}, {4, 1}, 4));
  EXPECT_FALSE(denseBytes({2, 3}, {0, 1}, 4));
  EXPECT_FALSE(denseBytes({2, 2}, {1, 1}, 4));
  EXPECT_FALSE(denseBytes({2}, {-1}, 4));
  EXPECT_FALSE(denseBytes({-2}, {1}, 4));
}

TEST(TensorLayout, TheSpanOfAViewHasItsGaps) {
  const auto view = layoutOf(Numbers{2, 3}, Numbers{10, 2}, 4);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->elements, 24U);
  EXPECT_EQ(view->span, 60U);  // 0, 2, 4, 10, 12, 14
  EXPECT_FALSE(layoutOf(Numbers{2, 3}, Numbers{4, 2}, 4)) << "0 + 4 and 4 + 0 are one element";
}

TEST(TensorLayout, RefusesOverflow) {
  const std::int64_t half = std::int64_t{1} << 40;
  EXPECT_FALSE(layoutOf(Numbers{half, half}, Numbers{half, 1}, 1));
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_FALSE(layoutOf(Numbers{most}, Numbers{1}, 8));
  EXPECT_FALSE(layoutOf(Numbers{3}, Numbers{most}, 1));
  EXPECT_FALSE(layoutOf(Numbers{2}, Numbers{most}, 8));
}

TEST(Wire, APayloadInTheHeaderHasALimit) {
  const auto reads = [](WireKind kind, std::size_t size) {
    std::vector<std::byte> bytes;
    const std::vector<std::byte> payload(size);
    WireHeader head;
    head.kind = kind;
    head.payload = payload;
    WireWriter(bytes).header(head);
    return WireReader(bytes).header(head);
  };
  for (const WireKind kind : {WireKind::kRequest, WireKind::kResponse}) {
    EXPECT_TRUE(reads(kind, kInlinePayloadBytes));
    EXPECT_FALSE(reads(kind, kInlinePayloadBytes + 1));
  }
  for (const WireKind kind : {WireKind::kControl, WireKind::kControlAck}) {
    EXPECT_TRUE(reads(kind, kMaxControlBytes));
    EXPECT_FALSE(reads(kind, kMaxControlBytes + 1));
  }
}

}  // namespace
}  // namespace weft::rpc
