// What becomes of a call whose message cannot be taken here: it fails, and the link lives.
#include <gtest/gtest.h>
#include <time.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "rpc_backend/serve/callback/script_service.h"
#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/rpc_backend/agent_world.h"
#include "tests/support/waiting.h"

namespace weft::rpc {
namespace {

using transport::Disposition;

using testing::kNobodyHasThis;
using World = testing::AgentWorld;

TEST(MessageRouter, ARequestThatFindsNoMemoryIsAnswered) {
  World world;
  EXPECT_EQ(world.announce(WireKind::kRequest, 77, kNobodyHasThis), Disposition::kDiscard);
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  const std::string answer = world.recorder.messages()[0].header;
  WireHeader head;
  ASSERT_TRUE(WireReader(std::as_bytes(std::span(answer))).header(head));
  EXPECT_EQ(head.kind, WireKind::kResponse);
  EXPECT_EQ(head.call_id, 77U);
  EXPECT_EQ(static_cast<MessageType>(head.type), MessageType::EXCEPTION);
  EXPECT_NE(answer.find("worker 'worker0' (rank 0) refuses the request: there is no memory"),
            std::string::npos)
      << answer;
  EXPECT_NE(answer.find("(RESOURCE_EXHAUSTED)"), std::string::npos) << answer;
}

TEST(MessageRouter, AnAnswerThatFindsNoMemoryFailsItsCall) {
  World world;
  const auto request = c10::make_intrusive<Message>(std::vector<char>{}, std::vector<at::Tensor>{},
                                                    MessageType::SCRIPT_CALL);
  const auto future = world.client.send(1, request, milliseconds(0), {});
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  const std::string asked = world.recorder.messages()[0].header;
  WireHeader head;
  ASSERT_TRUE(WireReader(std::as_bytes(std::span(asked))).header(head));
  EXPECT_EQ(world.announce(WireKind::kResponse, head.call_id, kNobodyHasThis),
            Disposition::kDiscard);
  future->wait();
  ASSERT_TRUE(future->hasError());
  const std::string text = future->tryRetrieveErrorMessage();
  EXPECT_NE(text.find("cannot take the answer of worker 'worker1'"), std::string::npos) << text;
  EXPECT_NE(text.find("(RESOURCE_EXHAUSTED)"), std::string::npos) << text;
}

TEST(MessageRouter, ARequestBeyondTheLimitIsAnsweredWithItsName) {
  World world;
  const transport::Error why(transport::ErrorCode::kLimitExceeded, "over max_message_bytes");
  world.router.onTooLarge(1, World::headerOf(WireKind::kRequest, 77, 10), why);
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  EXPECT_NE(world.recorder.messages()[0].header.find("refuses the request: over max_message_bytes"),
            std::string::npos);
}

TEST(MessageRouter, APeerThatReturnsIsNotLostAnyMore) {
  World world;
  world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
  EXPECT_EQ(world.group.lossOf(1), "it is lost");
  world.router.onPeerReturned({1, "worker1", ""});
  EXPECT_FALSE(world.group.lossOf(1));
  EXPECT_EQ(world.group.losses().lastReason(1), "it is lost");
  EXPECT_TRUE(world.group.losses().lastOutage(1));
}

// After an outage both have taken the other one off the list of a dynamic group.
TEST(MessageRouter, AMemberThatHasAnotherInThisPlaceIsPutOnTheListAgain) {
  World world(2 * kNobodyHasThis, std::nullopt);
  MemberRecord record;
  record.rank = 1;
  record.name = "worker1";
  record.auth = "store";
  record.policy = "any";
  record.address = world.peer->address();
  EXPECT_EQ(world.group.serveControl(1, ControlType::kJoin, record.toText()), "");
  world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
  world.router.onDisplaced({1, "worker1", {transport::ErrorCode::kAuthFailed, "taken"}});
  EXPECT_EQ(world.group.lossOf(1), "taken");
  EXPECT_TRUE(transport::eventually([&] {
    return world.store->check({"weft/members"}) &&
           world.store->get_to_str("weft/members").find("name=worker1") != std::string::npos;
  }));
}

TEST(MessageRouter, ANewcomerOfAnotherProtocolIsToldSo) {
  World world(2 * kNobodyHasThis, std::nullopt);
  MemberRecord record;
  record.rank = 1;
  record.name = "worker1";
  record.address = world.peer->address();
  record.wire = 99;
  const std::string why = world.group.serveControl(1, ControlType::kJoin, record.toText());
  EXPECT_NE(why.find("worker 'worker1' (rank 1) speak different versions of Weft's protocol"),
            std::string::npos)
      << why;
  world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
  EXPECT_FALSE(world.group.directory().contains(1));  // it is no member
}

// Whoever has the key may join under ever new ranks.
TEST(MessageRouter, NothingIsKeptOfAMemberThatLeft) {
  World world(2 * kNobodyHasThis, std::nullopt);
  MemberRecord record;
  record.rank = 1;
  record.name = "worker1";
  record.auth = "store";
  record.policy = "registered";
  record.address = world.peer->address();
  EXPECT_EQ(world.group.serveControl(1, ControlType::kJoin, record.toText()), "");
  EXPECT_FALSE(world.group.everyoneServesPython());
  const transport::PeerLoss loss{1, "worker1", {transport::ErrorCode::kPeerClosed, "it left"}};
  world.router.onPeerLost(loss);
  EXPECT_EQ(world.sender.endpoint()->stats().peers.size(), 1U);  // it has not said that it leaves
  EXPECT_EQ(world.group.serveControl(1, ControlType::kLeave, ""), "");
  EXPECT_TRUE(world.group.everyoneServesPython());
  world.router.onPeerLost(loss);
  EXPECT_TRUE(world.sender.endpoint()->stats().peers.empty());
}

TEST(MessageRouter, AMemberThatDiedBeforeItCouldBeToldIsNone) {
  World world(2 * kNobodyHasThis, std::nullopt);
  const auto unreachable = [](worker_id_t, ControlType, const std::string&, milliseconds) {
    auto failed = c10::make_intrusive<JitFuture>(c10::AnyType::get());
    failed->setError(std::make_exception_ptr(std::runtime_error("nobody listens there")));
    return failed;
  };
  Group group(world.context, world.sender, unreachable, world.store, std::nullopt, 0);
  const transport::GroupSecret secret = group.secret();
  MemberRecord record;
  record.rank = 1;
  record.name = "worker1";
  record.auth = "store";
  record.policy = "registered";
  record.address = world.peer->address();
  Membership(world.store, "worker1", 1, 0).join(record);
  group.join(secret);
  EXPECT_FALSE(group.everyoneServesPython());
  group.announce();
  EXPECT_TRUE(group.everyoneServesPython());
  EXPECT_FALSE(group.directory().contains(1));
  EXPECT_EQ(world.store->get_to_str("weft/members").find("name=worker1"), std::string::npos);
}

// Of a rank's 16 lower bits another worker may have the same.
TEST(MessageRouter, ARankBeyondThoseOfWorkersIsNobodys) {
  constexpr std::int32_t kRank = 65536 + 1;
  World world(2 * kNobodyHasThis, std::nullopt);
  transport::expectOk(world.sender.endpoint()->addPeer({kRank, "high", "weft1;tcp=127.0.0.1:9"}));
  world.router.onPeerJoined({kRank, "high", ""});
  EXPECT_EQ(world.group.directory().byId(1).name_, "worker1");
  std::vector<transport::OwnedBuffer> buffers(1);
  EXPECT_EQ(world.router.onHeader(kRank, World::headerOf(WireKind::kRequest, 1, 10),
                                  std::vector<std::uint64_t>{10}, buffers),
            Disposition::kRefuse);
  EXPECT_TRUE(
      transport::eventually([&] { return world.sender.endpoint()->stats().peers.size() == 1U; }));
  EXPECT_FALSE(world.group.lossOf(1));
  EXPECT_TRUE(world.group.directory().contains(1));
}

TEST(MessageRouter, NothingIsKeptOfALostPeerThatNeverJoined) {
  World world(2 * kNobodyHasThis, std::nullopt);
  world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
  EXPECT_FALSE(world.group.directory().contains(1));
  EXPECT_TRUE(world.sender.endpoint()->stats().peers.empty());
}

TEST(MessageRouter, AWorkerThatComesBackHasItsEntryAgain) {
  Directory directory;
  directory.add("worker1", 1);
  const WorkerInfo* const before = &directory.byId(1);
  directory.remove(1);
  directory.add("worker1", 1);
  EXPECT_EQ(&directory.byId(1), before);
}

MemberRecord recordOf(std::int32_t rank, const std::string& address) {
  MemberRecord record;
  record.rank = rank;
  record.world = 2;
  record.name = "worker" + std::to_string(rank);
  record.auth = "store";
  record.policy = "any";
  record.address = address;
  return record;
}

TEST(MessageRouter, ACountOfBarriersThatIsNoneIsNamed) {
  World again;  // after a life of rank 0 that ended
  std::thread other(
      [&] { Membership(again.store, "worker1", 1, 2).meet(recordOf(1, again.peer->address())); });
  Membership(again.store, "worker0", 0, 2).meet(recordOf(0, "weft1;tcp=127.0.0.1:9"));
  other.join();
  static_cast<c10d::Store&>(*again.store).set("weft/barriers", "many");  // HashStore hides it
  try {
    again.group.join(again.group.secret());
    FAIL() << "it joined";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("count of the group's barriers is malformed: 'many'"),
              std::string::npos)
        << error.what();
  }
}

// A member of a dynamic group may come with any name: calls to that of another go on to it.
TEST(MessageRouter, ANewcomerDoesNotGetTheNameOfALiveWorker) {
  World world(2 * kNobodyHasThis, std::nullopt);
  world.router.onPeerJoined({7, "worker1", ""});
  EXPECT_EQ(world.group.directory().byName("worker1").id_, 1);
  EXPECT_FALSE(world.group.directory().contains(7));
  std::vector<transport::OwnedBuffer> buffers(1);
  EXPECT_EQ(world.router.onHeader(7, World::headerOf(WireKind::kRequest, 1, 10),
                                  std::vector<std::uint64_t>{10}, buffers),
            Disposition::kDiscard);
  world.router.onPeerLost({1, "worker1", {transport::ErrorCode::kPeerLost, "it is lost"}});
  world.router.onPeerJoined({7, "worker1", ""});
  EXPECT_EQ(world.group.directory().byName("worker1").id_, 7);
}

// torch has names of its own choice.
TEST(MessageRouter, ANewcomerWithANameThatTorchRefusesIsCutOff) {
  World world(2 * kNobodyHasThis, std::nullopt);
  transport::expectOk(world.sender.endpoint()->addPeer({7, "a/b", "weft1;tcp=127.0.0.1:9"}));
  world.router.onPeerJoined({7, "a/b", ""});
  ASSERT_TRUE(transport::eventually([&] { return world.group.lossOf(7).has_value(); }));
  EXPECT_NE(world.group.lossOf(7)->find("worker 'a/b' (rank 7) is cut off: Worker name must match"),
            std::string::npos)
      << *world.group.lossOf(7);
}

// Its RRefs would be read on the loop thread.
TEST(MessageRouter, APayloadTooLongForItsHeaderIsMalformed) {
  World world;
  std::vector<std::byte> header;
  WireHeader head;
  const std::vector<std::byte> payload(kInlinePayloadBytes + 1);
  head.payload = payload;
  WireWriter(header).header(head);
  std::vector<transport::OwnedBuffer> buffers;
  EXPECT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kRefuse);
  world.router.onTooLarge(1, header, {transport::ErrorCode::kLimitExceeded, "it is too large"});
  EXPECT_TRUE(transport::eventually([&] { return world.group.lossOf(1).has_value(); }));
  EXPECT_EQ(world.recorder.messageCount(), 0U);
}

TEST(MessageRouter, AMalformedMessageIsRefused) {
  World world;
  std::vector<transport::OwnedBuffer> buffers;
  EXPECT_EQ(world.router.onHeader(1, std::vector<std::byte>(3), {}, buffers), Disposition::kRefuse);
}

TEST(RequestServer, ARequestThatNeverRunsGivesItsBytesBack) {
  constexpr std::uint64_t kLimit = 100'000;
  World world(kLimit);
  world.context.workers.stop(milliseconds(0));
  const auto header = World::headerOf(WireKind::kRequest, 5, kLimit / 2);
  std::vector<transport::OwnedBuffer> buffers(1);
  auto in = IncomingMessage::begin(header, std::vector<std::uint64_t>{kLimit / 2}, buffers);
  ASSERT_TRUE(in.ok()) << in.error().text();
  world.server.onRequest(1, std::move(in).value());
  EXPECT_TRUE(world.server.admits(1, {}, kLimit / 2 + 1));
}

// A request that comes from rank 1 and waits: the workers are held. The server has no callback, so
// that one which runs is a crash.
void ask(World& world, std::uint64_t id, std::uint32_t timeout_ms) {
  std::vector<std::byte> header;
  WireHeader head;
  head.type = static_cast<std::uint16_t>(MessageType::PYTHON_CALL);
  head.call_id = id;
  head.timeout_ms = timeout_ms;
  WireWriter(header).header(head);
  std::vector<transport::OwnedBuffer> buffers;
  ASSERT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kAccept);
  world.router.onMessage(1, header, {});
}

void cancel(World& world, std::uint64_t id) {
  const auto header =
      encodeControl(WireKind::kControl, static_cast<std::uint16_t>(ControlType::kCancel), id, "")
          .header;
  std::vector<transport::OwnedBuffer> buffers;
  ASSERT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kAccept);
  world.router.onMessage(1, header, {});
}

void expectAllDropped(World& world, std::uint64_t count) {
  world.context.workers.release();
  const auto& dropped = world.context.metrics.requests_dropped;
  EXPECT_TRUE(waitUntil([&] { return dropped == count; }, std::chrono::seconds(10))) << dropped;
  EXPECT_EQ(world.context.metrics.server_calls, 0);
}

TEST(RequestServer, SmallRequestsCountForWhatTheyTake) {
  constexpr std::uint64_t kLimit = 100'000;
  World world(kLimit);
  for (std::uint64_t id = 1; id <= 50; ++id)
    ask(world, id, 1);
  EXPECT_FALSE(world.server.admits(1, {}, kLimit / 2));
  takes(std::chrono::milliseconds(5));
  expectAllDropped(world, 50);
  EXPECT_TRUE(
      waitUntil([&] { return world.server.admits(1, {}, kLimit / 2); }, std::chrono::seconds(10)));
}

TEST(RequestServer, WhatItsCallerTookBackDoesNotRun) {
  World world;
  for (const std::uint64_t id : {3U, 4U, 9U})
    ask(world, id, 0);
  for (const std::uint64_t id : {9U, 1U, 3U, 4U, 3U, 77U})  // some twice, some never asked
    cancel(world, id);
  expectAllDropped(world, 3);
}

// A request whose payload is in memory that the two share.
void askWith(World& world, std::uint64_t id, const std::string& payload) {
  std::vector<std::byte> header;
  WireHeader head;
  head.type = static_cast<std::uint16_t>(MessageType::PYTHON_CALL);
  head.call_id = id;
  head.payload_inline = false;
  WireWriter(header).header(head);
  std::vector<transport::OwnedBuffer> buffers{transport::newBuffer(payload.size())};
  std::memcpy(buffers[0].data, payload.data(), payload.size());
  ASSERT_EQ(world.router.onHeader(1, header, std::vector<std::uint64_t>{payload.size()}, buffers),
            Disposition::kAccept);
  world.router.onMessage(1, header, std::move(buffers));
}

std::chrono::nanoseconds timeOfThisThread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// It serves all other peers meanwhile.
TEST(RequestServer, TheLoopThreadReadsNoPayload) {
  World world;
  const auto running = std::make_shared<const std::atomic<bool>>(true);
  world.context.running = running;
  const std::string marks(std::size_t{64} << 20, '(');  // each could begin an RRef
  askWith(world, 1, marks);
  askWith(world, 2, marks);
  const auto before = timeOfThisThread();
  cancel(world, 1);
  world.server.onPeerLost(1);
  EXPECT_LT(timeOfThisThread() - before, milliseconds(20));
  expectAllDropped(world, 2);
}

// What nobody waits for any more still waits for a worker.
TEST(RequestServer, WhatWasTakenBackCountsWhileItIsHere) {
  constexpr std::uint64_t kLimit = 100'000;
  constexpr std::uint64_t kCount = 50;
  World world(kLimit);
  for (std::uint64_t id = 1; id <= kCount; ++id) {
    ask(world, id, 0);
    cancel(world, id);
  }
  EXPECT_FALSE(world.server.admits(1, {}, kLimit - kCount * 1024));
  expectAllDropped(world, kCount);
  EXPECT_TRUE(transport::eventually([&] { return world.server.admits(1, {}, kLimit - 1024); }));
}

// Each RRef in a request that did not run becomes a message, which waits for its answer.
TEST(RequestServer, AWorkerThatDoesNotAcknowledgeIsCutOff) {
  World world;
  const auto running = std::make_shared<const std::atomic<bool>>(true);
  world.context.running = running;
  world.recorder.keep = false;
  std::string payload;
  for (std::size_t i = 0; i <= RRefDecliner::kMostUnacknowledged; ++i)
    payload += std::string("(K\1K\1K\7K\1K\7K\1X", 14);
  askWith(world, 1, payload);
  cancel(world, 1);
  EXPECT_TRUE(transport::eventually([&] { return world.group.lossOf(1).has_value(); }));
  EXPECT_NE(world.group.lossOf(1)->find("does not acknowledge what becomes of 65536 RRefs"),
            std::string::npos)
      << *world.group.lossOf(1);
  EXPECT_LE(world.context.metrics.calls_sent, RRefDecliner::kMostUnacknowledged);
}

void probe(World& world, std::uint64_t id, const std::string& text) {
  const auto type = static_cast<std::uint16_t>(ControlType::kDeviceProbe);
  const auto header = encodeControl(WireKind::kControl, type, id, text).header;
  std::vector<transport::OwnedBuffer> buffers;
  ASSERT_EQ(world.router.onHeader(1, header, {}, buffers), Disposition::kAccept);
  world.router.onMessage(1, header, {});
}

TEST(RequestServer, ProbesOfDevicesCountWhileTheyWait) {
  constexpr std::uint64_t kLimit = 100'000;
  World world(kLimit);
  for (std::uint64_t id = 1; id <= 40; ++id)
    probe(world, id, std::string(1000, 'x'));
  EXPECT_FALSE(world.server.admits(1, {}, kLimit / 2));
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  for (std::uint64_t id = 41; id <= 60; ++id)
    probe(world, id, std::string(1000, 'x'));
  // Behind the refusal of the request, those of probes beyond the limit.
  ASSERT_TRUE(world.recorder.waitForMessages(2));
  const std::string answer = world.recorder.messages()[1].header;
  EXPECT_NE(answer.find("has no room for another probe"), std::string::npos) << answer;
  EXPECT_NE(answer.find("(RESOURCE_EXHAUSTED)"), std::string::npos) << answer;
  world.context.workers.release();
  EXPECT_TRUE(transport::eventually([&] { return world.server.admits(1, {}, kLimit - 1024); }));
}

TEST(RequestServer, WhatComesTooLateDoesNotRun) {
  World world;
  ask(world, 1, 1);
  takes(std::chrono::milliseconds(5));
  expectAllDropped(world, 1);
}

TEST(RequestServer, WhatALostWorkerAskedForDoesNotRun) {
  World world;
  ask(world, 1, 0);
  world.server.onPeerLost(1);
  expectAllDropped(world, 1);
}

// What it was asked for; one for the process.
class QuickService final : public ScriptService {
 public:
  static QuickService& get() {
    static auto* service = [] {
      auto* made = new QuickService;
      addScriptService(made);
      return made;
    }();
    return *service;
  }
  c10::intrusive_ptr<Future> run(const std::string& name, std::vector<at::IValue>& stack) override {
    if (name != kEcho) return nullptr;
    ++runs;
    auto done = c10::make_intrusive<Future>(c10::AnyType::get());
    done->markCompleted(stack.at(0));
    return done;
  }
  static constexpr const char* kEcho = "__weft__.quick.echo";
  std::atomic<int> runs = 0;
};

std::string scriptedCall(const std::string& name, std::vector<at::IValue> stack) {
  const auto message =
      torch::distributed::rpc::ScriptCall(c10::QualifiedName(name), std::move(stack)).toMessage();
  return {message->payload().begin(), message->payload().end()};
}

// The workers are held: what is answered was served by this thread, the loop's.
void askScript(World& world, const std::string& payload) {
  world.ask(MessageType::SCRIPT_CALL, payload);
}

TEST(RequestServer, AQuickCallRunsWhereItIsRead) {
  World world;
  world.context.phase = AgentContext::Phase::kServing;
  const int before = QuickService::get().runs;
  askScript(world, scriptedCall(QuickService::kEcho, {at::IValue("the echo of it")}));
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  EXPECT_NE(world.recorder.messages()[0].header.find("the echo of it"), std::string::npos);
  EXPECT_EQ(QuickService::get().runs, before + 1);
}

// The agent's devices may not be known yet. Its workers stay held: there is nothing to run it with.
TEST(RequestServer, AQuickCallWaitsUntilTheAgentServes) {
  constexpr std::uint64_t kLimit = 100'000;
  World world(kLimit);
  const int before = QuickService::get().runs;
  askScript(world, scriptedCall(QuickService::kEcho, {at::IValue("the echo of it")}));
  EXPECT_EQ(QuickService::get().runs, before);
  EXPECT_FALSE(world.server.admits(1, {}, kLimit - 1024));  // it waits
}

TEST(RequestServer, ALongCallIsLeftToAWorker) {
  constexpr std::uint64_t kLimit = 100'000;
  World world(kLimit);
  world.context.phase = AgentContext::Phase::kServing;
  const std::string large(8192, 'x');
  askScript(world, scriptedCall(QuickService::kEcho, {at::IValue(large)}));
  EXPECT_FALSE(world.server.admits(1, {}, kLimit - 2048));  // it waits
}

// Its last bytes name a quick call, and what torch would run is another: user code, on the loop.
TEST(RequestServer, WhatOnlyLooksLikeAQuickCallDoesNotRun) {
  World world;
  world.context.phase = AgentContext::Phase::kServing;
  const int before = QuickService::get().runs;
  askScript(world, scriptedCall("__torch__.users", {}) + QuickService::kEcho);
  ASSERT_TRUE(world.recorder.waitForMessages(1));
  const std::string answer = world.recorder.messages()[0].header;
  EXPECT_NE(answer.find("it is not a quick call"), std::string::npos) << answer;
  EXPECT_EQ(QuickService::get().runs, before);
}

}  // namespace
}  // namespace weft::rpc
