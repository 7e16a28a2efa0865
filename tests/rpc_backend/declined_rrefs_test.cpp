// An answer that torch does not get: its sender is told that nobody here has the RRefs in it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/rpc_backend/agent_world.h"

namespace weft::rpc {
namespace {

using testing::kNobodyHasThis;
using transport::Disposition;

constexpr const char* kTensor = "no pickle";

WireHeader headOf(const std::string& header) {
  WireHeader head;
  EXPECT_TRUE(WireReader(std::as_bytes(std::span(header))).header(head));
  return head;
}

// The header of an answer of rank 1 with a pickled RRef; `tensors`: of bytes that are no pickle.
std::vector<std::byte> answerWithRRef(std::uint64_t call_id, MessageType type,
                                      std::uint32_t tensors = 0) {
  const std::string payload("(K\1K\1K\7K\1K\7K\1X", 14);
  std::vector<std::byte> header;
  WireHeader head;
  head.kind = WireKind::kResponse;
  head.type = static_cast<std::uint16_t>(type);
  head.call_id = call_id;
  head.tensor_count = tensors;
  head.payload = std::as_bytes(std::span(payload));
  WireWriter writer(header);
  writer.header(head);
  TensorMeta meta;
  meta.form = TensorForm::kPickled;
  meta.is_inline = true;
  meta.inline_bytes = std::as_bytes(std::span(std::string_view(kTensor)));
  meta.bytes = meta.inline_bytes.size();
  for (std::uint32_t i = 0; i < tensors; ++i)
    writer.tensor(meta);
  return header;
}

class DeclinedRRefs : public ::testing::Test {
 protected:
  // A call to rank 1; returns its number.
  std::uint64_t call(testing::AgentWorld& world) {
    world.context.running = running_;
    const auto request = c10::make_intrusive<Message>(
        std::vector<char>{}, std::vector<at::Tensor>{}, MessageType::SCRIPT_CALL);
    future_ = world.client.send(1, request, milliseconds(0), {});
    EXPECT_TRUE(world.recorder.waitForMessages(1));
    return headOf(world.recorder.messages().at(0).header).call_id;
  }
  static void answer(testing::AgentWorld& world, const std::vector<std::byte>& header) {
    std::vector<transport::OwnedBuffer> buffers;
    ASSERT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kAccept);
    world.router.onMessage(1, header, {});
  }
  // Rank 1 is told of the RRef in its answer. Ends the calls of that, which the server counts.
  static void expectDeclined(testing::AgentWorld& world, std::size_t before) {
    ASSERT_TRUE(world.recorder.waitForMessages(before + 1));
    const WireHeader head = headOf(world.recorder.messages().at(before).header);
    EXPECT_EQ(static_cast<MessageType>(head.type), MessageType::RREF_USER_DELETE);
    world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
    EXPECT_TRUE(world.context.metrics.client_calls.waitForZero(std::chrono::seconds(10)));
  }
  void expectFailed(const std::string& text) {
    future_->wait();
    ASSERT_TRUE(future_->hasError());
    const std::string error = future_->tryRetrieveErrorMessage();
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }

  FuturePtr future_;
  const std::shared_ptr<const std::atomic<bool>> running_ =
      std::make_shared<const std::atomic<bool>>(true);
};

TEST_F(DeclinedRRefs, OfAnAnswerThatNobodyWaitsFor) {
  testing::AgentWorld world;
  world.context.running = running_;
  std::vector<transport::OwnedBuffer> buffers;
  EXPECT_EQ(world.router.onHeader(1, answerWithRRef(77, MessageType::SCRIPT_RET), {}, buffers),
            Disposition::kDiscard);
  expectDeclined(world, 0);
}

TEST_F(DeclinedRRefs, OfAnAnswerWhoseCallEndsWhileItIsRead) {
  testing::AgentWorld world;
  const std::uint64_t id = call(world);
  const auto header = answerWithRRef(id, MessageType::SCRIPT_RET);
  std::vector<transport::OwnedBuffer> buffers;
  EXPECT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kAccept);
  world.client.onSendFailed(1, id, "it has ended");
  world.router.onMessage(1, header, {});
  expectDeclined(world, 1);
}

TEST_F(DeclinedRRefs, OfAnAnswerThatThePolicyRefuses) {
  testing::AgentWorld world(2 * kNobodyHasThis, 2, c10::make_intrusive<c10d::HashStore>(),
                            RequestPolicy::kScript);
  answer(world, answerWithRRef(call(world), MessageType::PYTHON_RET));
  expectFailed("the answer of worker 'worker1' is refused");
  expectDeclined(world, 1);
}

TEST_F(DeclinedRRefs, OfAnAnswerThatCannotBeRead) {
  testing::AgentWorld world(2 * kNobodyHasThis, 2, c10::make_intrusive<c10d::HashStore>(),
                            RequestPolicy::kRegistered);
  answer(world, answerWithRRef(call(world), MessageType::PYTHON_RET, 1));
  expectFailed("does not trust the sender's pickles");
  expectDeclined(world, 1);
}

TEST_F(DeclinedRRefs, OfAnAnswerThatIsTooLarge) {
  testing::AgentWorld world;
  const std::uint64_t id = call(world);
  world.router.onTooLarge(1, answerWithRRef(id, MessageType::SCRIPT_RET),
                          {transport::ErrorCode::kLimitExceeded, "over max_message_bytes"});
  expectFailed("over max_message_bytes");
  expectDeclined(world, 1);
}

}  // namespace
}  // namespace weft::rpc
