// What a peer asks about RRefs and contexts that are not its own, and how torch reads it.
#include "rpc_backend/serve/callback/peer_request.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <string>
#include <utility>
#include <vector>

#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/rpc_backend/agent_world.h"

namespace weft::rpc {
namespace {

using testing::AgentWorld;
using torch::autograd::profiler::ProfilerConfig;
using torch::autograd::profiler::ProfilerState;
using torch::distributed::autograd::AutogradMetadata;
using torch::distributed::autograd::CleanupAutogradContextReq;
using torch::distributed::autograd::PropagateGradientsReq;
using torch::distributed::autograd::RpcWithAutograd;
using torch::distributed::autograd::RpcWithProfilingReq;
using torch::distributed::rpc::GloballyUniqueId;
using torch::distributed::rpc::RpcCommandBase;
using torch::distributed::rpc::RRefUserDelete;
using torch::distributed::rpc::ScriptCall;
using torch::distributed::rpc::ScriptRemoteCall;
using torch::distributed::rpc::ScriptResp;
using enum MessageType;

using Command = std::unique_ptr<RpcCommandBase>;

struct PeerRequestTest : ::testing::Test {
  // As when torch has read a request of rank 1.
  Command checked(Command command, MessageType type) {
    const PeerRequest request(1, world.server.contexts(), distrusts, gradients);
    return PeerRequest::checked(std::move(command), type);
  }
  // The context that torch is to end on behalf of rank 1; -1: none.
  std::int64_t ended(std::int64_t context) {
    const Command end =
        checked(std::make_unique<CleanupAutogradContextReq>(context), CLEANUP_AUTOGRAD_CONTEXT_REQ);
    return static_cast<CleanupAutogradContextReq&>(*end).getContextId();
  }

  bool distrusts = true;
  std::shared_ptr<void> gradients;
  AgentWorld world{2 * testing::kNobodyHasThis, 2, c10::make_intrusive<c10d::HashStore>(),
                   RequestPolicy::kScript};
};

std::unique_ptr<ScriptRemoteCall> creating(const GloballyUniqueId& value,
                                           const GloballyUniqueId& fork) {
  return std::make_unique<ScriptRemoteCall>(c10::QualifiedName("__torch__.f"),
                                            std::vector<at::IValue>{}, value, fork, false);
}

Command inContext(std::int64_t context, Command inner, MessageType type) {
  return std::make_unique<RpcWithAutograd>(1, FORWARD_AUTOGRAD_REQ, AutogradMetadata(context, 1),
                                           std::move(inner), type, std::vector<at::Tensor>{});
}

Command profiled(std::int64_t state, Command inner, MessageType type) {
  return std::make_unique<RpcWithProfilingReq>(
      RUN_WITH_PROFILING_REQ, std::move(inner), type, std::vector<at::Tensor>{},
      ProfilerConfig(static_cast<ProfilerState>(state)), GloballyUniqueId(1, 5));
}

TEST_F(PeerRequestTest, ARemoteCallCreatesRRefsOfItsCallerOnly) {
  EXPECT_NO_THROW(checked(creating({1, 4}, {1, 5}), SCRIPT_REMOTE_CALL));
  EXPECT_THROW(checked(creating({2, 4}, {1, 5}), SCRIPT_REMOTE_CALL), c10::Error);
  EXPECT_THROW(checked(creating({1, 4}, {2, 5}), SCRIPT_REMOTE_CALL), c10::Error);
  EXPECT_THROW(
      checked(inContext(1, creating({2, 4}, {2, 5}), SCRIPT_REMOTE_CALL), FORWARD_AUTOGRAD_REQ),
      c10::Error);
  // Outside of a peer's request.
  EXPECT_NO_THROW(PeerRequest::checked(creating({2, 4}, {2, 5}), SCRIPT_REMOTE_CALL));
}

// The ids of rank 2 are in a list and fetched from the memo; before that a text ends in what looks
// like ids of rank 1 up to the payload's end.
TEST_F(PeerRequestTest, IdsCountAsTorchReadsThem) {
  using namespace std::string_literals;
  const std::string payload = "\x80\x02(](K\x02K\x00\x86q\x05K\x02K\x01\x86q\x06"s +
                              "e\x89X\x08\x00\x00\x00"s + "aK\x01K\x05K\x01J"s + "h\x05h\x06t."s;
  const auto read = readCreatedIds(payload);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->value.created_on, 1);
  EXPECT_EQ(read->fork.created_on, 1);
  auto values =
      torch::jit::unpickle(payload.data(), payload.size(), nullptr, std::vector<at::Tensor>{})
          .toTupleRef()
          .elements()
          .vec();
  auto call = ScriptRemoteCall::fromIValues(values);
  EXPECT_EQ(call->retRRefId().createdOn_, 2);
  EXPECT_THROW(checked(std::move(call), SCRIPT_REMOTE_CALL), c10::Error);
}

TEST_F(PeerRequestTest, OnlyUsersCallsAreWrapped) {
  const auto deletion = [] {
    return std::make_unique<RRefUserDelete>(GloballyUniqueId(2, 4), GloballyUniqueId(2, 5));
  };
  EXPECT_THROW(checked(inContext(1, deletion(), RREF_USER_DELETE), FORWARD_AUTOGRAD_REQ),
               c10::Error);
  EXPECT_THROW(checked(profiled(1, deletion(), RREF_USER_DELETE), RUN_WITH_PROFILING_REQ),
               c10::Error);
  Command end = std::make_unique<CleanupAutogradContextReq>(std::int64_t{2} << 48);
  EXPECT_THROW(
      checked(inContext(1, std::move(end), CLEANUP_AUTOGRAD_CONTEXT_REQ), FORWARD_AUTOGRAD_REQ),
      c10::Error);
}

TEST_F(PeerRequestTest, AProfileHasAState) {
  for (const std::int64_t state : {0, -1, 99})
    EXPECT_THROW(checked(profiled(state, creating({1, 4}, {1, 5}), SCRIPT_REMOTE_CALL),
                         RUN_WITH_PROFILING_REQ),
                 c10::Error);
  EXPECT_NO_THROW(
      checked(profiled(1, creating({1, 4}, {1, 5}), SCRIPT_REMOTE_CALL), RUN_WITH_PROFILING_REQ));
}

// The callbacks that it would leave are looked for around the outermost message.
TEST_F(PeerRequestTest, AProfileIsAroundAutograd) {
  const auto call = [&] { return creating({1, 4}, {1, 5}); };
  const std::int64_t context = std::int64_t{1} << 48;
  EXPECT_THROW(
      checked(inContext(context, profiled(1, call(), SCRIPT_REMOTE_CALL), RUN_WITH_PROFILING_REQ),
              FORWARD_AUTOGRAD_REQ),
      c10::Error);
  EXPECT_NO_THROW(
      checked(profiled(1, inContext(context, call(), SCRIPT_REMOTE_CALL), FORWARD_AUTOGRAD_REQ),
              RUN_WITH_PROFILING_REQ));
}

TEST_F(PeerRequestTest, AContextIsEndedByWhoBeganItOrBroughtIt) {
  const std::int64_t its_own = (std::int64_t{1} << 48) + 3;
  const std::int64_t brought = (std::int64_t{2} << 48) + 3;
  EXPECT_EQ(ended(its_own), its_own);
  EXPECT_EQ(ended(brought), -1);
  checked(inContext(brought, creating({1, 4}, {1, 5}), SCRIPT_REMOTE_CALL), FORWARD_AUTOGRAD_REQ);
  EXPECT_EQ(ended(brought), brought);
  EXPECT_EQ(ended(brought), -1);
  EXPECT_EQ(ended(3), -1);  // of this worker
}

// torch would begin it, and wait in this worker's next pass for gradients of the peer's.
TEST_F(PeerRequestTest, AContextOfThisWorkersIsHere) {
  const auto call = [&] { return creating({1, 4}, {1, 5}); };
  EXPECT_THROW(checked(inContext(3, call(), SCRIPT_REMOTE_CALL), FORWARD_AUTOGRAD_REQ), c10::Error);
  distrusts = false;
  EXPECT_NO_THROW(checked(inContext(3, call(), SCRIPT_REMOTE_CALL), FORWARD_AUTOGRAD_REQ));
}

// torch writes them where its engine may still read the former ones.
TEST_F(PeerRequestTest, GradientsOfACallAreTakenOnceAtATime) {
  const auto bring = [&](std::int64_t message) {
    checked(std::make_unique<PropagateGradientsReq>(AutogradMetadata(1, message),
                                                    std::vector<at::Tensor>{}),
            BACKWARD_AUTOGRAD_REQ);
    return std::exchange(gradients, nullptr);
  };
  auto taken = bring(1);
  EXPECT_TRUE(taken);
  EXPECT_THROW(bring(1), c10::Error);
  EXPECT_TRUE(bring(2));
  taken.reset();
  EXPECT_TRUE(bring(1));
}

// Operators and compiled graphs expect none.
TEST_F(PeerRequestTest, UndefinedTensorsAreNoArguments) {
  const auto call = [&](const char* name, at::IValue value) {
    return checked(std::make_unique<ScriptCall>(c10::QualifiedName(name),
                                                std::vector<at::IValue>{std::move(value)}),
                   SCRIPT_CALL);
  };
  EXPECT_NO_THROW(call("__torch__.f", at::ones({1})));
  EXPECT_THROW(call("__torch__.f", at::Tensor()), c10::Error);
  EXPECT_THROW(call("__torch__.f", c10::List<at::Tensor>({at::ones({1}), at::Tensor()})),
               c10::Error);
  EXPECT_NO_THROW(call("__weft__.quick.deliver", at::Tensor()));
}

TEST_F(PeerRequestTest, OfAPeerThatIsTrustedOnlyTheEndOfThisWorkersContextsIsInVain) {
  distrusts = false;
  const std::int64_t of_another = (std::int64_t{2} << 48) + 3;
  EXPECT_EQ(ended(of_another), of_another);
  EXPECT_EQ(ended(3), -1);
  EXPECT_NO_THROW(checked(creating({2, 4}, {2, 5}), SCRIPT_REMOTE_CALL));
}

// The answer to the one request that was asked.
std::string answerOf(AgentWorld& world) {
  world.context.workers.release();
  if (!world.recorder.waitForMessages(1)) return "no answer";
  return world.recorder.messages()[0].header;
}

TEST_F(PeerRequestTest, ARemoteCallThatIsToCreateAnothersRRefIsRefused) {
  world.ask(SCRIPT_REMOTE_CALL, std::move(*creating({2, 4}, {2, 5})).toMessage()->payload());
  const std::string answer = answerOf(world);
  EXPECT_NE(answer.find("refuses the request: the RRef that it creates is not its own"),
            std::string::npos)
      << answer;
  EXPECT_EQ(world.context.metrics.requests_refused_by_policy.load(), 1U);
}

MessagePtr wrapped(MessageType type, std::int64_t context, MessagePtr message) {
  return RpcWithAutograd(1, type, AutogradMetadata(context, 1), std::move(message)).toMessage();
}

// The header of rank 1's answer to that call, wrapped for autograd.
std::vector<std::byte> answerInContext(std::uint64_t call, std::int64_t context) {
  const auto answer =
      wrapped(FORWARD_AUTOGRAD_RESP, context, ScriptResp(at::IValue(1)).toMessage());
  WireHeader head;
  head.kind = WireKind::kResponse;
  head.type = static_cast<std::uint16_t>(FORWARD_AUTOGRAD_RESP);
  head.call_id = call;
  head.payload = std::as_bytes(std::span(answer->payload()));
  std::vector<std::byte> header;
  WireWriter(header).header(head);
  return header;
}

// What becomes of a call whose answer names context 3.
std::string answeredInContext(AgentWorld& world, const MessagePtr& call) {
  const auto future = world.client.send(1, call, milliseconds(0), {});
  if (!world.recorder.waitForMessages(1)) return "it was not sent";
  const std::string sent = world.recorder.messages()[0].header;
  WireHeader head;
  EXPECT_TRUE(WireReader(std::as_bytes(std::span(sent))).header(head));
  const auto answer = answerInContext(head.call_id, 3);
  std::vector<transport::OwnedBuffer> buffers;
  EXPECT_EQ(world.router.onHeader(1, answer, {}, buffers), transport::Disposition::kAccept);
  world.router.onMessage(1, answer, {});
  future->wait();
  return future->hasError() ? future->tryRetrieveErrorMessage() : "";
}

MessagePtr plainCall() {
  return ScriptCall(c10::QualifiedName("__torch__.f"), std::vector<at::IValue>{}).toMessage();
}

// torch would begin it, and it would never end.
TEST_F(PeerRequestTest, AnAnswerToAPlainCallNamesNoContext) {
  EXPECT_NE(answeredInContext(world, plainCall()).find("is refused: it names a context"),
            std::string::npos);
}

TEST_F(PeerRequestTest, AnAnswerNamesTheContextOfItsCall) {
  EXPECT_EQ(answeredInContext(world, wrapped(FORWARD_AUTOGRAD_REQ, 3, plainCall())), "");
}

TEST_F(PeerRequestTest, AnAnswerNamesNoContextButThatOfItsCall) {
  EXPECT_NE(answeredInContext(world, wrapped(FORWARD_AUTOGRAD_REQ, 4, plainCall()))
                .find("is refused: it names a context"),
            std::string::npos);
}

TEST_F(PeerRequestTest, ADeletedRRefIsAcknowledgedWhereItIsRead) {
  world.context.phase = AgentContext::Phase::kServing;  // its workers stay held
  world.ask(RREF_USER_DELETE,
            RRefUserDelete(GloballyUniqueId(0, 4), GloballyUniqueId(1, 5)).toMessage()->payload());
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  WireHeader head;
  const std::string answer = world.recorder.messages()[0].header;
  ASSERT_TRUE(WireReader(std::as_bytes(std::span(answer))).header(head));
  EXPECT_EQ(static_cast<MessageType>(head.type), RREF_ACK);
}

// torch might read it.
TEST_F(PeerRequestTest, AMessageAboutAnRRefThatCannotBeReadIsNotLeftToTorch) {
  world.ask(RREF_USER_DELETE, std::string("\x80\x02)."));
  const std::string answer = answerOf(world);
  EXPECT_NE(answer.find("the request is malformed: it names no RRef"), std::string::npos) << answer;
}

}  // namespace
}  // namespace weft::rpc
