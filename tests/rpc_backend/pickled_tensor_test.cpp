// Tensors as torch's pickler writes them, and those that reach for memory that is not theirs.
#include "rpc_backend/codec/pickled_tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <string>

namespace weft::rpc {
namespace {

using namespace std::string_literals;

std::string pickled(const at::Tensor& tensor) {
  return torch::distributed::rpc::wireSerialize({}, {tensor});
}

at::Tensor read(const std::string& bytes) {
  return readPickledTensor(std::span(bytes.data(), bytes.size()));
}

std::string fault(const std::string& bytes) {
  try {
    read(bytes);
    return "";
  } catch (const c10::Error& error) {
    return error.msg();
  }
}

void expectFault(const std::string& bytes, const std::string& part) {
  EXPECT_NE(fault(bytes).find(part), std::string::npos) << fault(bytes);
}

at::Tensor values(const at::Tensor& tensor) {
  if (tensor.is_quantized()) return tensor.dequantize();
  return tensor.layout() == c10::kStrided ? tensor.resolve_conj() : tensor.to_dense();
}

std::vector<at::Tensor> manyKinds() {
  const at::Tensor base = at::randn({6, 10});
  const at::Tensor scales = at::arange(1, 11).to(at::kDouble) / 10;
  const at::Tensor points = at::arange(10);
  at::Tensor random = at::randn({4, 5}, at::kComplexDouble);
  return {
      at::eye(4).to_sparse(),
      at::zeros({3, 3}).to_sparse(),
      at::sparse_coo_tensor(at::tensor({0, 3}, at::kLong).view({1, 2}), at::randn({2, 5}), {4, 5}),
      at::sparse_coo_tensor(at::tensor({1, 1}, at::kLong).view({1, 2}), at::ones({1}).expand({2}),
                            {3}),
      at::sparse_coo_tensor(at::tensor({0, 1}, at::kLong).view({1, 2}),
                            random.conj().select(0, 1).slice(0, 2, 4), {3}),
      at::eye(4).to(at::kBFloat16).to_sparse(),
      at::eye(4).to_sparse_csr(),
      at::quantize_per_tensor(base, 0.1, 3, at::kQInt8),
      at::quantize_per_tensor(base, 0.1, 3, at::kQUInt8).t().slice(0, 2, 9, 3),
      at::quantize_per_tensor(base, 0.1, 0, at::kQInt32),
      at::quantize_per_channel(base, scales, points, 1, at::kQInt8),
      at::quantize_per_channel(base, scales.to(at::kFloat), points.to(at::kFloat), 1, at::kQUInt8),
      base.slice(0, 2, 4).t(),
      random.conj(),
      at::_neg_view(base),
  };
}

TEST(PickledTensor, WhatTorchPicklesIsRead) {
  int number = 0;
  for (const at::Tensor& sent : manyKinds()) {
    SCOPED_TRACE(number++);
    const at::Tensor came = read(pickled(sent));
    EXPECT_EQ(came.sizes(), sent.sizes());
    EXPECT_EQ(came.scalar_type(), sent.scalar_type());
    EXPECT_EQ(came.layout(), sent.layout());
    EXPECT_TRUE(at::equal(values(came), values(sent)));
    ASSERT_EQ(came.is_quantized(), sent.is_quantized());
    if (sent.is_quantized()) {
      EXPECT_EQ(came.qscheme(), sent.qscheme());
    }
  }
}

// Whatever is changed: a tensor whose elements can be read, or an error that says what it is of.
TEST(PickledTensor, ChangedBytesNeverCrash) {
  for (const at::Tensor& sent : manyKinds()) {
    const std::string whole = pickled(sent);
    for (std::size_t at = 0; at < whole.size(); at += 3) {
      if (at % 8 == 0) expectFault(whole.substr(0, at), "cannot be read");
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
      try {
        const at::Tensor came = read(changed);
        if (came.numel() < 1000) static_cast<void>(values(came));
      } catch (const c10::Error&) {
      }
    }
  }
}

// Pickles made by hand.

std::string section(const std::string& name, const std::string& bytes) {
  return name + " " + std::to_string(bytes.size()) + "\n";
}

std::string wire(const std::string& tensor, const std::string& elements = std::string(8, 'x')) {
  const std::string meta =
      "\x80\x02"s + "ctorch.jit._pickle\nbuild_tensorlist\n(](" + tensor + "etR.";
  return section("meta", meta) + section("0", elements) + "\n" + meta + elements;
}

std::string text(const std::string& value) {
  return "X"s + static_cast<char>(value.size()) + std::string(3, '\0') + value;
}

std::string number(std::int64_t value) {
  return "\x8a\x08"s + std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

struct Shape {
  std::int64_t offset = 0;
  std::int64_t size = 2;
  std::int64_t stride = 1;
  std::int64_t claimed = 2;  // elements of the storage
  std::string device = "cpu";
  std::string key = "0";
};

std::string storage(const Shape& shape, const std::string& type) {
  return "(" + text("storage") + "ctorch\n" + type + "Storage\n" + text(shape.key) +
         text(shape.device) + number(shape.claimed) + "tQ";
}

std::string place(const Shape& shape, const std::string& type) {
  return storage(shape, type) + number(shape.offset) + "(" + number(shape.size) + "t(" +
         number(shape.stride) + "t";
}

std::string dense(const Shape& shape, const std::string& type = "Float") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + place(shape, type) + "\x89NtR";
}

TEST(PickledTensor, ElementsLieInTheBytesThatCame) {
  EXPECT_EQ(fault(wire(dense({}))), "");
  EXPECT_EQ(read(wire(dense({.size = 0}))).numel(), 0);
  // What it claims of the storage does not matter.
  EXPECT_EQ(fault(wire(dense({.claimed = std::int64_t{1} << 40, .device = "cuda:0"}))), "");
  for (const Shape& shape :
       {Shape{.size = 3}, Shape{.size = std::int64_t{1} << 62}, Shape{.offset = 1},
        Shape{.offset = -1}, Shape{.offset = std::int64_t{1} << 62}, Shape{.stride = 2},
        Shape{.offset = 1000, .size = 0}, Shape{.stride = std::int64_t{1} << 62}}) {
    expectFault(wire(dense(shape)), "weft: a pickled tensor cannot be read: ");
  }
  for (const Shape& shape : {Shape{.size = -1}, Shape{.stride = -1}})
    expectFault(wire(dense(shape)), "negative");
  expectFault(wire(dense({.key = "1"})), "a section is missing");
  expectFault(wire(dense({}, "Text")), "type of elements is unknown");
  expectFault(wire("ctorch._utils\n_rebuild_tensor_v2\n(K\x00K\x00(K\x01t(K\x01t\x89NtR"s),
              "a storage is missing");
}

std::string quantised(const Shape& shape, const std::string& how) {
  return "ctorch._utils\n_rebuild_qtensor\n(" + place(shape, "QInt8") + "(" + how + "t\x89NtR";
}

TEST(PickledTensor, ScalesLieInTheBytesThatCame) {
  const auto how = [](const Shape& scales, int axis) {
    return "ctorch\nper_channel_affine\n" + dense(scales) + dense({}, "Int") + number(axis);
  };
  EXPECT_EQ(fault(wire(quantised({}, how({}, 0)))), "");
  expectFault(wire(quantised({.size = 9}, how({}, 0))), "its scales");
  expectFault(wire(quantised({}, how({.size = 1000}, 0))), "among the bytes");
  expectFault(wire(quantised({}, how({.stride = 0}, 0))), "its scales");
  expectFault(wire(quantised({}, how({}, 1))), "no such axis");
  expectFault(wire(quantised({}, "ctorch\nper_tensor_affine\nK\x01K\x01")),
              "scale is not a number");
}

std::string coo(std::int64_t size) {
  const Shape one{.size = 1};
  return "ctorch._utils\n_rebuild_sparse_tensor\n(K\x01(" + number(size) + "t\x89" +
         "ctorch._utils\n_rebuild_tensor_v2\n(" + storage(one, "Long") + "K\x00(K\x01K\x01t("s +
         "K\x01K\x01t\x89NtR" + "ctorch._utils\n_rebuild_tensor_v2\n(" +
         storage({.key = "0"}, "Long") + "K\x00(K\x01t(K\x01t\x89NtRNtR"s;
}

TEST(PickledTensor, IndicesLieInTheShape) {
  const auto with = [](std::int64_t index, std::int64_t size) {
    return wire(coo(size), std::string(reinterpret_cast<const char*>(&index), sizeof(index)));
  };
  EXPECT_EQ(read(with(3, 4)).to_dense().sum().item<std::int64_t>(), 3);
  EXPECT_NE(fault(with(4, 4)), "");
  EXPECT_NE(fault(with(-1, 4)), "");
}

TEST(PickledTensor, OtherPicklesAreRefused) {
  expectFault("", "cut short");
  expectFault("meta 5\n\nabc", "cut short");
  expectFault("meta -5\n0 8\n\nabc", "no length");
  expectFault("meta 18446744073709551615\n0 4\n\nabc", "cut short");
  expectFault("meta\n\n", "no length");
  expectFault("0 3\n\nabc", "a section is missing");
  expectFault("meta 1\n\nabc", "of no section");
  std::string deep = "N";
  for (int i = 0; i < 1'000'000; ++i)
    deep += "\x85";
  expectFault(wire(deep), "nested too deeply");
  expectFault(wire("Nr\xff\xff\xff\x7f"), "memo");
  expectFault(wire("cos\nsystem\n(NNNNNNtR"), "does not write");
  expectFault(wire(dense({}) + dense({})), "not one tensor");
  expectFault(wire(dense({}) + dense({}) + dense({}) + dense({}) + dense({}) + dense({}) +
                   dense({}) + dense({}) + dense({})),
              "too many parts");
}

}  // namespace
}  // namespace weft::rpc
