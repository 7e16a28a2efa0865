// The codec there and back, without a network: what encode() makes, begin() and finish() read; and
// what begin() refuses.
#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/wire/wire_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <cstring>

#include "tests/support/resident.h"

namespace weft::rpc {
namespace {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using MessagePtr = c10::intrusive_ptr<Message>;

MessagePtr makeMessage(std::size_t payload, std::vector<at::Tensor> tensors) {
  std::vector<char> bytes(payload);
  for (std::size_t i = 0; i < payload; ++i)
    bytes[i] = static_cast<char>(i * 7);
  return c10::make_intrusive<Message>(std::move(bytes), std::move(tensors),
                                      MessageType::SCRIPT_CALL, 5);
}

std::vector<std::uint64_t> sizesOf(const transport::Message& message) {
  std::vector<std::uint64_t> sizes;
  for (const auto& buffer : message.buffers)
    sizes.push_back(buffer.size);
  return sizes;
}

// Through the wire's form, as the transport would carry it.
MessagePtr thereAndBack(const MessagePtr& message, bool distrusted = false) {
  const auto wire = encode(WireKind::kRequest, 77, message, {}, "peer");
  std::vector<transport::OwnedBuffer> buffers;
  auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers);
  if (!in.ok()) {
    ADD_FAILURE() << in.error().text();
    return nullptr;
  }
  EXPECT_EQ(buffers.size(), wire.buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_GE(buffers[i].size, wire.buffers[i].size);
    std::memcpy(buffers[i].data, wire.buffers[i].data, wire.buffers[i].size);
  }
  EXPECT_EQ(in.value()->kind(), WireKind::kRequest);
  EXPECT_EQ(in.value()->callId(), 77U);
  return in.value()->finish(distrusted);
}

transport::Error refusalOf(std::span<const std::byte> header,
                           const std::vector<std::uint64_t>& sizes) {
  std::vector<transport::OwnedBuffer> buffers;
  const auto in = IncomingMessage::begin(header, sizes, buffers);
  return in.ok() ? transport::Error() : in.error();
}

TEST(MessageCodec, PayloadsOfEverySizeArrive) {
  for (const std::size_t size : {0UL, 1UL, kInlinePayloadBytes - 1, kInlinePayloadBytes,
                                 kInlinePayloadBytes + 1, std::size_t{1} << 20}) {
    const auto sent = makeMessage(size, {});
    const std::vector<char> expected = sent->payload();  // a large one is taken out of `sent`
    const auto came = thereAndBack(sent);
    ASSERT_TRUE(came);
    EXPECT_EQ(came->payload(), expected) << size;
    EXPECT_EQ(came->type(), MessageType::SCRIPT_CALL);
  }
}

class AnySender : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(MessageCodec, AnySender, ::testing::Bool());

TEST_P(AnySender, TensorsOfEveryLayoutArrive) {
  const at::Tensor base = at::randn({40, 30});
  std::vector<at::Tensor> sent{
      base,
      base.t(),
      base.narrow(0, 3, 5),
      base.slice(1, 0, 30, 7),
      at::randn({3, 1}).expand({3, 200}),
      at::scalar_tensor(2.5),
      at::empty({0}),
      at::empty({3, 0, 2}),
      at::Tensor(),
      at::randn({5, 5}, at::kComplexDouble).conj(),
      at::randn({5, 5}).to(at::kBFloat16),
      at::ones({300}, at::kBool),
      at::eye(4).to_sparse(),
      at::eye(300).to_sparse_csr().requires_grad_(),
      at::eye(4).to_sparse_bsc({2, 2}),
      at::ones({2, 2}).requires_grad_(),
      at::ones({kInlineTensorBytes / 4}),
      at::ones({kInlineTensorBytes / 4 + 1}),
  };
  const bool distrusted = GetParam();
  if (!distrusted) sent.push_back(at::quantize_per_tensor(base, 0.1, 3, at::kQInt8));
  const auto came = thereAndBack(makeMessage(10, sent), distrusted);
  ASSERT_TRUE(came);
  ASSERT_EQ(came->tensors().size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const at::Tensor& there = came->tensors()[i];
    ASSERT_EQ(there.defined(), sent[i].defined()) << i;
    if (!there.defined()) continue;
    EXPECT_EQ(there.sizes(), sent[i].sizes()) << i;
    EXPECT_EQ(there.scalar_type(), sent[i].scalar_type()) << i;
    EXPECT_EQ(there.layout(), sent[i].layout()) << i;
    EXPECT_EQ(there.requires_grad(), sent[i].requires_grad()) << i;
    const auto values = [](const at::Tensor& tensor) {
      const at::Tensor plain = tensor.detach();
      if (plain.is_quantized()) return plain.dequantize();
      return plain.layout() == c10::kStrided ? plain.resolve_conj() : plain.to_dense();
    };
    EXPECT_TRUE(at::equal(values(there), values(sent[i]))) << i;
    EXPECT_TRUE(!there.is_sparse() || there.is_coalesced()) << i;
    if (sent[i].layout() == c10::kStrided && sent[i].is_non_overlapping_and_dense()) {
      EXPECT_EQ(there.strides(), sent[i].strides()) << i;
    }
  }
}

// torch's reader of its pickles believes the lengths and places in them.
TEST(MessageCodec, WhatTorchPickledIsNotReadFromAPeerThatIsNotTrusted) {
  const at::Tensor sent = at::quantize_per_tensor(at::ones({3}), 0.1, 3, at::kQInt8);
  try {
    thereAndBack(makeMessage(10, {sent}), /*distrusted=*/true);
    ADD_FAILURE() << "it was read";
  } catch (const c10::Error& error) {
    EXPECT_NE(error.msg().find("send its parts as plain tensors"), std::string::npos);
  }
}

TEST(MessageCodec, DenseElementsAreNotCopied) {
  const at::Tensor tensor = at::ones({1000});
  const auto wire = encode(WireKind::kRequest, 1, makeMessage(3, {tensor}), {}, "peer");
  ASSERT_EQ(wire.buffers.size(), 1U);
  EXPECT_EQ(static_cast<void*>(wire.buffers[0].data), tensor.data_ptr());
}

TEST(MessageCodec, WhatIsSentOutlivesItsTensor) {
  at::Tensor tensor = at::full({1000}, 3.0);
  const auto wire = encode(WireKind::kRequest, 1, makeMessage(3, {tensor}), {}, "peer");
  tensor.reset();
  float last = 0;
  std::memcpy(&last, wire.buffers[0].data + 999 * sizeof(float), sizeof last);
  EXPECT_EQ(last, 3.0F);
}

// What is said when these tensors cannot be sent to "the peer's name"; empty: they were encoded.
std::string whyNotSent(std::vector<at::Tensor> tensors) {
  try {
    encode(WireKind::kRequest, 1, makeMessage(1, std::move(tensors)), {}, "the peer's name");
    return {};
  } catch (const c10::Error& error) {
    return error.what();
  }
}

TEST(MessageCodec, MetaTensorsAreRefusedInWords) {
  const std::string why = whyNotSent({at::empty({3}, at::kMeta)});
  EXPECT_NE(why.find("the peer's name"), std::string::npos) << why;
  EXPECT_NE(why.find("no data"), std::string::npos) << why;
}

TEST(MessageCodec, ATensorBeyondItsStorageIsRefusedInWords) {
  const at::Tensor freed = at::ones({4});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  const at::Tensor shrunk = at::arange(100).slice(0, 90);
  const at::Tensor strided = shrunk.slice(0, 0, 10, 3);  // torch refuses such a view afterwards
  const at::Tensor inside = shrunk.slice(0, 0, 2);
  shrunk.storage().unsafeGetStorageImpl()->set_nbytes(92 * sizeof(std::int64_t));
  const at::Tensor null = at::ones({2, 3});
  null.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, at::kCPU});
  for (const at::Tensor& bad : {freed, shrunk, strided, null}) {
    const std::string why = whyNotSent({bad});
    EXPECT_NE(why.find("the peer's name"), std::string::npos) << why;
    EXPECT_NE(why.find("bytes that its elements need"), std::string::npos) << why;
    EXPECT_THROW(copyForSelf(*makeMessage(3, {bad})), c10::Error);
  }
  EXPECT_EQ(whyNotSent({inside, null.slice(0, 0, 0)}), "");
}

TEST(MessageCodec, MoreTensorsThanTheLimitAreRefusedInWords) {
  const std::string why = whyNotSent(std::vector<at::Tensor>(kMaxTensors + 1));
  EXPECT_NE(why.find("65537 tensors, and the limit is 65536"), std::string::npos) << why;
  EXPECT_NE(why.find("(RESOURCE_EXHAUSTED)"), std::string::npos) << why;
}

TEST(MessageCodec, SizesMustBeThoseOfTheHeader) {
  const auto wire =
      encode(WireKind::kRequest, 1,
             makeMessage(kInlinePayloadBytes + 1, {at::ones({1000}), at::eye(900).to_sparse()}), {},
             "peer");
  const auto sizes = sizesOf(wire);
  ASSERT_EQ(sizes.size(), 4U);
  EXPECT_FALSE(refusalOf(wire.header, sizes));
  for (std::size_t i = 1; i < sizes.size(); ++i) {  // the payload's size is the sender's choice
    for (const std::uint64_t other :
         {std::uint64_t{0}, sizes[i] - 1, sizes[i] + 1, ~std::uint64_t{0}}) {
      auto changed = sizes;
      changed[i] = other;
      EXPECT_TRUE(refusalOf(wire.header, changed)) << i << " as " << other;
    }
  }
  for (std::size_t count = 0; count < sizes.size(); ++count) {
    EXPECT_TRUE(refusalOf(wire.header, {sizes.begin(), sizes.begin() + static_cast<long>(count)}));
  }
  auto more = sizes;
  more.push_back(1);
  EXPECT_TRUE(refusalOf(wire.header, more));
}

TEST(MessageCodec, TruncatedAndLengthenedHeadersAreRefused) {
  const auto wire =
      encode(WireKind::kRequest, 1, makeMessage(5, {at::ones({2}), at::ones({900})}), {}, "peer");
  const auto sizes = sizesOf(wire);
  for (std::size_t length = 0; length < wire.header.size(); ++length) {
    EXPECT_TRUE(refusalOf(std::span(wire.header).first(length), sizes)) << length;
  }
  auto longer = wire.header;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refusalOf(longer, sizes));
}

// Every buffer is here already, in memory that the sender shares.
TEST(MessageCodec, SharedBuffersBecomeTheTensorsAndWhatIsParsedIsCopied) {
  const at::Tensor dense = at::rand({40, 50}).t();
  const at::Tensor gapped = at::rand({64, 64}).slice(1, 0, 60);
  const at::Tensor sparse = at::rand({40, 50}).to_sparse();
  const at::Tensor quantised = at::quantize_per_tensor(at::rand({500}), 0.1, 3, at::kQInt8);
  const auto sent = makeMessage(100'000, {dense, gapped, sparse, quantised});
  const std::vector<char> payload = sent->payload();
  auto wire = encode(WireKind::kRequest, 77, sent, {}, "peer");
  std::vector<transport::OwnedBuffer> buffers = wire.buffers;
  std::vector<std::weak_ptr<void>> users;
  for (transport::OwnedBuffer& buffer : buffers) {
    auto memory = std::make_shared<std::vector<std::byte>>(buffer.data, buffer.data + buffer.size);
    buffer = {memory->data(), memory->size(), memory};
    users.push_back(memory);
  }
  ASSERT_EQ(buffers.size(), 6U);
  std::byte* const first = buffers[1].data;
  auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers);
  ASSERT_TRUE(in.ok()) << in.error().text();
  buffers.clear();
  EXPECT_EQ(in.value()->payload(), payload);
  EXPECT_TRUE(users[0].expired());  // a copy
  auto came = in.value()->finish();
  in.value().reset();
  EXPECT_EQ(came->payload(), payload);
  at::Tensor tensor = came->tensors()[0];
  EXPECT_EQ(tensor.data_ptr(), first);
  EXPECT_TRUE(tensor.equal(dense));
  EXPECT_EQ(tensor.strides(), dense.strides());
  EXPECT_TRUE(came->tensors()[1].equal(gapped));
  EXPECT_TRUE(came->tensors()[2].to_dense().equal(sparse.to_dense()));
  EXPECT_TRUE(came->tensors()[3].dequantize().equal(quantised.dequantize()));
  EXPECT_TRUE(users[5].expired());  // the pickle
  tensor.zero_();
  EXPECT_FALSE(dense.equal(tensor));
  came.reset();
  EXPECT_FALSE(users[1].expired());
  tensor.resize_({100, 100});  // moves, and lets the memory go
  EXPECT_TRUE(users[1].expired());
  EXPECT_EQ(tensor.fill_(1).sum().item<double>(), 10'000);
}

TEST(MessageCodec, WhereThePeerIsNotTrustedSharedBuffersAreCopied) {
  const at::Tensor dense = at::rand({40, 50}).t();
  auto wire = encode(WireKind::kRequest, 77, makeMessage(10, {dense}), {}, "peer");
  ASSERT_EQ(wire.buffers.size(), 1U);
  auto memory = std::make_shared<std::vector<std::byte>>(
      wire.buffers[0].data, wire.buffers[0].data + wire.buffers[0].size);
  std::vector<transport::OwnedBuffer> buffers{{memory->data(), memory->size(), memory}};
  auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers);
  ASSERT_TRUE(in.ok()) << in.error().text();
  const auto came = in.value()->finish(/*distrusted=*/true);
  std::fill(memory->begin(), memory->end(), std::byte{0xff});  // as its sender could
  EXPECT_TRUE(came->tensors()[0].equal(dense));
  EXPECT_EQ(came->tensors()[0].strides(), dense.strides());
}

// Large tensors are read into memory of the pool, and give it back; small ones are not.
TEST(MessageCodec, LargeTensorsLieInThePool) {
  const auto pool = transport::WarmPool::create(std::uint64_t{8} << 20);
  ASSERT_NE(pool, nullptr);
  const std::uint64_t room = pool->freeBytes();
  const at::Tensor dense = at::randn({300, 200}).t();
  const at::Tensor gapped = at::randn({300, 300}).narrow(1, 0, 299);
  const at::Tensor small = at::randn({50, 50});
  const at::Tensor sparse = at::rand({300, 300}).to_sparse();
  const auto sent = makeMessage(100'000, {dense, gapped, small, sparse});
  const std::vector<char> payload = sent->payload();
  const auto wire = encode(WireKind::kRequest, 77, sent, {}, "peer");
  std::vector<transport::OwnedBuffer> buffers;
  auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers, pool.get());
  ASSERT_TRUE(in.ok()) << in.error().text();
  ASSERT_EQ(buffers.size(), 6U);
  EXPECT_LE(pool->freeBytes(), room - dense.nbytes() - gapped.nbytes());
  for (std::size_t i = 0; i < buffers.size(); ++i)
    std::memcpy(buffers[i].data, wire.buffers[i].data, wire.buffers[i].size);
  const std::byte* const first = buffers[1].data;
  buffers.clear();
  auto came = in.value()->finish();
  in.value().reset();
  EXPECT_EQ(came->payload(), payload);
  at::Tensor tensor = came->tensors()[0];
  EXPECT_EQ(tensor.data_ptr(), first);
  EXPECT_TRUE(tensor.equal(dense));
  EXPECT_EQ(tensor.strides(), dense.strides());
  EXPECT_TRUE(came->tensors()[1].equal(gapped));
  EXPECT_TRUE(came->tensors()[2].equal(small));
  EXPECT_TRUE(came->tensors()[3].to_dense().equal(sparse.to_dense()));
  came.reset();
  EXPECT_LT(pool->freeBytes(), room);
  tensor.resize_({1000, 1000});  // moves, and lets the memory go
  EXPECT_EQ(pool->freeBytes(), room);
  EXPECT_EQ(tensor.fill_(1).sum().item<double>(), 1'000'000);
}

TEST(MessageCodec, AFullPoolIsNoHindrance) {
  const auto pool = transport::WarmPool::create(1);
  const transport::OwnedBuffer all = pool->take(pool->freeBytes());
  const at::Tensor dense = at::randn({300, 200});
  const auto wire = encode(WireKind::kRequest, 77, makeMessage(5, {dense}), {}, "peer");
  std::vector<transport::OwnedBuffer> buffers;
  auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers, pool.get());
  ASSERT_TRUE(in.ok()) << in.error().text();
  std::memcpy(buffers[0].data, wire.buffers[0].data, wire.buffers[0].size);
  EXPECT_TRUE(in.value()->finish()->tensors()[0].equal(dense));
}

// One byte changed at a time: begin() answers, one way or the other, and never throws or crashes;
// what it accepts can be finished, or says why not.
TEST(MessageCodec, ChangedBytesNeverCrash) {
  const auto wire = encode(WireKind::kRequest, 1,
                           makeMessage(5, {at::ones({2, 3}).requires_grad_(),
                                           at::ones({30, 30}).t(), at::ones({30, 30}).to_sparse()}),
                           {}, "peer");
  const auto sizes = sizesOf(wire);
  for (std::size_t at = 0; at < wire.header.size(); ++at) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      auto changed = wire.header;
      changed[at] ^= static_cast<std::byte>(flip);
      std::vector<transport::OwnedBuffer> buffers;
      const auto in = IncomingMessage::begin(changed, sizes, buffers);
      if (!in.ok()) continue;
      for (std::size_t i = 0; i < buffers.size(); ++i)
        std::memset(buffers[i].data, 0, sizes[i]);
      try {
        in.value()->finish();
      } catch (const c10::Error&) {
      }
    }
  }
}

// What a sender says of tensors that it copied from its devices while they were being sent.
TEST(MessageCodec, AByteSaysWhetherTensorsWereCopied) {
  auto wire = encode(WireKind::kResponse, 1, makeMessage(5, {at::ones({300})}), {}, "peer");
  wire.header[1] |= std::byte{64};
  EXPECT_NE(refusalOf(wire.header, {1200}).text().find("missing"), std::string::npos);
  EXPECT_TRUE(refusalOf(wire.header, {1200, 2}));
  EXPECT_TRUE(refusalOf(wire.header, {1200, 1, 1}));
  for (const int said : {0, 1, 2}) {
    std::vector<transport::OwnedBuffer> buffers;
    const auto in =
        IncomingMessage::begin(wire.header, std::vector<std::uint64_t>{1200, 1}, buffers);
    ASSERT_TRUE(in.ok()) << in.error().text();
    std::memcpy(buffers[0].data, wire.buffers[0].data, 1200);
    *buffers[1].data = static_cast<std::byte>(said);
    if (said == 1) {
      EXPECT_TRUE(in.value()->finish()->tensors()[0].equal(at::ones({300})));
    } else {
      EXPECT_THROW(in.value()->finish(), c10::Error);
    }
  }
  wire.header[1] = std::byte{64 + 3};
  EXPECT_TRUE(refusalOf(wire.header, {1200, 1}));
}

TEST(MessageCodec, NoMemoryIsAnErrorNotAnException) {
  std::vector<std::byte> header;
  WireWriter writer(header);
  WireHeader head;
  head.tensor_count = 1;
  writer.header(head);
  TensorMeta meta;
  meta.form = TensorForm::kDense;
  meta.dtype = static_cast<std::uint8_t>(at::kByte);
  meta.ndim = 1;
  meta.sizes[0] = std::int64_t{1} << 60;
  meta.strides[0] = 1;
  writer.tensor(meta);
  const auto error = refusalOf(header, {std::uint64_t{1} << 60});
  EXPECT_EQ(error.code(), transport::ErrorCode::kLimitExceeded);
  EXPECT_NE(error.text().find("memory"), std::string::npos);
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(MessageCodec, AClaimedPayloadTakesNoMemoryBeforeItComes) {
  std::vector<std::byte> header;
  WireHeader head;
  head.payload_inline = false;
  WireWriter(header).header(head);
  const auto pool = transport::WarmPool::create(2048 * kMiB);
  for (transport::WarmPool* const from : {static_cast<transport::WarmPool*>(nullptr), pool.get()}) {
    std::vector<transport::OwnedBuffer> buffers;
    const std::size_t before = residentBytes();
    const auto in =
        IncomingMessage::begin(header, std::vector<std::uint64_t>{1024 * kMiB}, buffers, from);
    ASSERT_TRUE(in.ok()) << in.error().text();
    EXPECT_LT(residentBytes(), before + 8 * kMiB);
    EXPECT_EQ(buffers.at(0).size, 1024 * kMiB);
    EXPECT_NE(buffers.at(0).data, nullptr);
  }
}

// Nor does it where torch is asked to fill new memory, so that programs with a mistake repeat it.
TEST(MessageCodec, AClaimedTensorTakesNoMemoryBeforeItComes) {
  std::vector<std::byte> header;
  WireWriter writer(header);
  WireHeader head;
  head.tensor_count = 1;
  writer.header(head);
  TensorMeta meta;
  meta.form = TensorForm::kPickled;
  meta.bytes = 1024 * kMiB;
  writer.tensor(meta);
  at::globalContext().setDeterministicAlgorithms(true, false);
  std::vector<transport::OwnedBuffer> buffers;
  const std::size_t before = residentBytes();
  const auto in = IncomingMessage::begin(header, std::vector<std::uint64_t>{1024 * kMiB}, buffers);
  at::globalContext().setDeterministicAlgorithms(false, false);
  ASSERT_TRUE(in.ok()) << in.error().text();
  EXPECT_LT(residentBytes(), before + 8 * kMiB);
}

TEST(MessageCodec, AHeaderFullOfTensorsIsRefused) {
  std::vector<std::byte> header;
  WireHeader head;
  constexpr std::size_t kHead = 20;
  head.tensor_count = static_cast<std::uint32_t>(16 * kMiB - kHead);
  WireWriter(header).header(head);
  header.resize(16 * kMiB);  // undefined tensors, of a byte each
  const std::size_t before = residentBytes();
  EXPECT_EQ(refusalOf(header, {}).code(), transport::ErrorCode::kProtocol);
  EXPECT_LT(residentBytes(), before + 32 * kMiB);
}

TEST(MessageCodec, MoreTensorsThanAReceiverTakesAreRefusedInWords) {
  const std::string why = whyNotSent(std::vector<at::Tensor>(kMaxTensors + 1));
  EXPECT_NE(why.find("the peer's name"), std::string::npos) << why;
  EXPECT_NE(why.find("65537 tensors"), std::string::npos) << why;
}

TEST(MessageCodec, TensorsCountBesideTheirBytes) {
  const auto wire = encode(
      WireKind::kRequest, 1,
      makeMessage(5, {at::ones({3}), at::Tensor(), at::ones({9}).slice(0, 0, 9, 2)}), {}, "peer");
  std::vector<transport::OwnedBuffer> buffers;
  const auto in = IncomingMessage::begin(wire.header, sizesOf(wire), buffers);
  ASSERT_TRUE(in.ok()) << in.error().text();
  EXPECT_EQ(in.value()->bytes(),
            5 + 12 + 20 + 3 * kTensorCost + 2 * kDimensionCost + kMaxGappedBytes);
}

// Sizes and strides are kept in the tensor, and those of a view with gaps twice.
TEST(MessageCodec, ATensorOfManyDimensionsCountsForWhatItTakes) {
  constexpr std::uint32_t kCount = 2000;
  std::vector<std::byte> header;
  WireWriter writer(header);
  WireHeader head;
  head.tensor_count = kCount;
  writer.header(head);
  TensorMeta meta;
  meta.form = TensorForm::kDense;
  meta.dtype = static_cast<std::uint8_t>(at::kByte);
  meta.device_index = -1;
  meta.ndim = kMaxDims;
  meta.sizes.fill(1);
  meta.strides.fill(2);
  meta.sizes[0] = 2;
  meta.gapped = true;
  meta.is_inline = true;
  const std::array<std::byte, 2> elements{};
  meta.inline_bytes = elements;
  for (std::uint32_t i = 0; i < kCount; ++i)
    writer.tensor(meta);
  std::vector<transport::OwnedBuffer> buffers;
  const std::size_t before = ::mallinfo2().uordblks;
  const auto in = IncomingMessage::begin(header, {}, buffers);
  const std::size_t taken = ::mallinfo2().uordblks - before;
  ASSERT_TRUE(in.ok()) << in.error().text();
  // The gaps take memory later.
  const auto counted = in.value()->bytes() - kCount * kMaxGappedBytes;
  EXPECT_LE(taken, counted);
  EXPECT_GT(2 * taken, counted);
}

// A sender makes a long view dense; a receiver refuses its gaps.
TEST(MessageCodec, AViewKeepsFewGapsOnly) {
  std::vector<std::byte> header;
  WireWriter writer(header);
  WireHeader head;
  head.tensor_count = 1;
  writer.header(head);
  TensorMeta meta;
  meta.form = TensorForm::kDense;
  meta.dtype = static_cast<std::uint8_t>(at::kByte);
  meta.ndim = 1;
  meta.sizes[0] = 2;
  meta.strides[0] = kMaxGappedBytes;
  meta.gapped = true;
  meta.bytes = 2;
  meta.is_inline = true;
  const std::array<std::byte, 2> elements{};
  meta.inline_bytes = elements;
  writer.tensor(meta);
  EXPECT_EQ(refusalOf(header, {}).code(), transport::ErrorCode::kProtocol);

  const at::Tensor all = at::arange(2048, at::kByte);
  const at::Tensor few = all.slice(0, 0, 1024, 1023);
  const at::Tensor many = all.slice(0, 0, 1025, 1024);
  const auto sent = makeMessage(1, {few, many});
  for (const auto& came : {thereAndBack(sent), copyForSelf(*sent)}) {
    ASSERT_TRUE(came);
    EXPECT_EQ(came->tensors()[0].stride(0), 1023);
    EXPECT_EQ(came->tensors()[1].stride(0), 1);
    EXPECT_TRUE(came->tensors()[0].equal(few));
    EXPECT_TRUE(came->tensors()[1].equal(many));
  }
}

// The byte that says whether the tensors were copied may lie in the sender's memory.
TEST(MessageCodec, TheByteBehindCopiedTensorsIsKept) {
  std::vector<std::byte> header;
  WireWriter writer(header);
  WireHeader head;
  head.staged = true;
  writer.header(head);
  auto byte = std::make_shared<std::byte>(std::byte{1});
  const std::weak_ptr<std::byte> kept = byte;
  std::vector<transport::OwnedBuffer> buffers(1);
  buffers[0] = {byte.get(), 1, std::move(byte)};
  const std::vector<std::uint64_t> sizes{1};
  auto in = IncomingMessage::begin(header, sizes, buffers);
  ASSERT_TRUE(in.ok()) << in.error().text();
  buffers.clear();
  ASSERT_FALSE(kept.expired());
  EXPECT_NO_THROW(in.value()->finish(false));
}

TEST(MessageCodec, AControlMessageIsAHeaderOnly) {
  std::vector<std::byte> header;
  WireHeader head;
  head.kind = WireKind::kControl;
  head.payload_inline = false;
  WireWriter(header).header(head);
  EXPECT_EQ(refusalOf(header, {1000}).code(), transport::ErrorCode::kProtocol);
}

TEST(CopyForSelf, SharesNothing) {
  const at::Tensor leaf = at::ones({4}).requires_grad_();
  const at::Tensor view = at::ones({40, 40}).slice(0, 0, 40, 2);
  const auto copy =
      copyForSelf(*makeMessage(3, {leaf, view, at::Tensor(), at::eye(3).to_sparse()}));
  ASSERT_EQ(copy->tensors().size(), 4U);
  EXPECT_TRUE(copy->tensors()[0].requires_grad());
  EXPECT_NE(copy->tensors()[0].data_ptr(), leaf.data_ptr());
  EXPECT_NE(copy->tensors()[1].data_ptr(), view.data_ptr());
  EXPECT_TRUE(at::equal(copy->tensors()[1], view));
  EXPECT_FALSE(copy->tensors()[2].defined());
  EXPECT_EQ(copy->payload().size(), 3U);
}

}  // namespace
}  // namespace weft::rpc
