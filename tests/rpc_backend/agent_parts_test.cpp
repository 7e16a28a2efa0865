// The parts of the agent that need no network: pending calls, policy.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "rpc_backend/call/call_table.h"
#include "rpc_backend/call/rref_creation.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/options/request_policy.h"
#include "rpc_backend/rref/orphaned_rrefs.h"
#include "rpc_backend/serve/error_text.h"
#include "rpc_backend/torch_private/torch_ids.h"
#include "tests/support/waiting.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using torch::distributed::rpc::MessageType;

// Pending calls.

PendingCall callTo(std::int16_t peer, std::chrono::milliseconds timeout = 0ms,
                   Clock::time_point started = Clock::now()) {
  PendingCall call;
  call.peer = peer;
  call.timeout = timeout;
  call.started = started;
  return call;
}

std::size_t sizeOf(const CallTable& calls) { return calls.oldest(1000).size(); }

TEST(CallTable, OnlyTheOneWhoWasAskedMayAnswer) {
  CallTable calls;
  const auto id = calls.add(callTo(3));
  EXPECT_TRUE(calls.waits(id, 3));
  EXPECT_FALSE(calls.waits(id, 4));
  EXPECT_FALSE(calls.take(id, 4));
  EXPECT_EQ(sizeOf(calls), 1U);
  EXPECT_TRUE(calls.take(id, 3));
  EXPECT_FALSE(calls.take(id, 3));
  EXPECT_FALSE(calls.waits(id, 3));
}

TEST(CallTable, TellsTheOldestCalls) {
  CallTable calls;
  const auto now = Clock::now();
  for (const int age : {1, 3, 2}) {
    PendingCall call;
    call.peer = static_cast<worker_id_t>(age);
    call.started = now - std::chrono::seconds(age);
    calls.add(std::move(call));
  }
  const auto oldest = calls.oldest(2);
  ASSERT_EQ(oldest.size(), 2U);
  EXPECT_EQ(oldest[0].peer, 3);
  EXPECT_EQ(oldest[1].peer, 2);
  EXPECT_EQ(sizeOf(calls), 3U);
}

TEST(ErrorText, LosesOnlyTheFramesOfCpp) {
  const std::string plain = "frame #1 of the film\n\n";
  EXPECT_EQ(withoutStack(plain), plain);
  EXPECT_EQ(
      withoutStack("no room\nException raised from f at a.cpp:1 (most recent call first):\n"
                   "frame #0: g() + 0x1 (0x2 in lib.so)\nframe #1: h()\n\nAt:\n  x.py(1): y\n"),
      "no room\n\nAt:\n  x.py(1): y");
}

TEST(CallTable, TakenByPeerAndAltogether) {
  CallTable calls;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 30; ++i)
    ids.insert(calls.add(callTo(static_cast<std::int16_t>(i % 3))));
  EXPECT_EQ(ids.size(), 30U);
  for (const PendingCall& call : calls.takeAllOf(1))
    EXPECT_EQ(call.peer, 1);
  EXPECT_EQ(sizeOf(calls), 20U);
  EXPECT_TRUE(calls.takeAllOf(1).empty());
  EXPECT_EQ(calls.takeAll().size(), 20U);
  EXPECT_EQ(sizeOf(calls), 0U);
}

TEST(CallTable, RoomIsPerPeerAndGivenBackByWhoeverTakesACall) {
  CallTable calls;
  const auto now = Clock::now();
  const auto add = [&](std::int16_t peer) {
    PendingCall call = callTo(peer);
    call.counted = calls.waitForRoom(peer, 2, now) == transport::Waited::kDone;
    return call.counted ? calls.add(std::move(call)) : 0;
  };
  const std::uint64_t first = add(1);
  EXPECT_NE(first, 0U);
  EXPECT_NE(add(1), 0U);
  EXPECT_EQ(add(1), 0U);
  EXPECT_NE(add(2), 0U);
  EXPECT_TRUE(calls.take(first, 1));
  EXPECT_NE(add(1), 0U);
  EXPECT_EQ(add(1), 0U);
  EXPECT_EQ(calls.takeAllOf(1).size(), 2U);
  EXPECT_NE(add(1), 0U);
  EXPECT_NE(add(1), 0U);
  EXPECT_EQ(add(1), 0U);
}

TEST(CallTable, RoomIsGivenBackForACallThatIsNotAdded) {
  CallTable calls;
  const auto now = Clock::now();
  EXPECT_EQ(calls.waitForRoom(1, 1, now), transport::Waited::kDone);
  EXPECT_EQ(calls.waitForRoom(1, 1, now), transport::Waited::kLate);
  calls.giveRoomBack(1);
  EXPECT_EQ(calls.waitForRoom(1, 1, now), transport::Waited::kDone);
}

TEST(CallTable, WhoWaitsForRoomGetsWhatOthersGiveBack) {
  CallTable calls;
  constexpr int kThreads = 4;
  constexpr int kCalls = 500;
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        PendingCall call = callTo(1);
        call.counted = calls.waitForRoom(1, 2, CallContext::kNever) == transport::Waited::kDone;
        EXPECT_LE(++inside, 2);
        const std::uint64_t id = calls.add(std::move(call));
        --inside;
        EXPECT_TRUE(calls.take(id, 1));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(sizeOf(calls), 0U);
}

TEST(CallTable, FetchesOfAValueAreTakenTogether) {
  CallTable calls;
  const RRefKey value{1, 5};
  const auto fetch = [&](const RRefKey& of) {
    PendingCall call = callTo(1);
    call.fetched = of;
    return calls.add(std::move(call));
  };
  const std::uint64_t answered = fetch(value);
  for (const RRefKey& of : {value, value, RRefKey{1, 6}})
    fetch(of);
  calls.add(callTo(1));
  EXPECT_TRUE(calls.take(answered, 1));
  for (const PendingCall& call : calls.takeFetches(value))
    EXPECT_EQ(call.fetched, value);
  EXPECT_EQ(sizeOf(calls), 2U);
  EXPECT_TRUE(calls.takeFetches(value).empty());
  EXPECT_EQ(calls.takeAllOf(1).size(), 2U);
  EXPECT_TRUE(calls.takeFetches({1, 6}).empty());
}

// Takes room for a call to rank 1, and the call.
std::uint64_t callWithRoom(CallTable& calls, Clock::time_point deadline = CallContext::kNever) {
  PendingCall call = callTo(1);
  call.counted = calls.waitForRoom(1, 1, deadline) == transport::Waited::kDone;
  return call.counted ? calls.add(std::move(call)) : 0;
}

TEST(CallTable, RoomIsGivenInOrderOfArrival) {
  CallTable calls;
  std::uint64_t held = callWithRoom(calls);
  std::promise<void> asked;
  std::vector<int> order;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const std::uint64_t id = callWithRoom(calls);
      order.push_back(t);  // who has the room is alone
      if (t == 0) asked.get_future().wait();
      EXPECT_TRUE(calls.take(id, 1));
    });
    const auto waiting = static_cast<std::size_t>(t) + 1;
    ASSERT_TRUE(waitUntil([&] { return calls.waitingForRoom(1) == waiting; }, 30s));
  }
  // Who gives room back and asks for it again is the last in line.
  EXPECT_TRUE(calls.take(held, 1));
  EXPECT_EQ(callWithRoom(calls, Clock::now()), 0U);
  asked.set_value();
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  held = callWithRoom(calls, Clock::now());
  EXPECT_NE(held, 0U);
}

TEST(CallTable, WhoGivesUpWaitingLetsTheNextOneIn) {
  CallTable calls;
  const std::uint64_t held = callWithRoom(calls);
  std::atomic<bool> over{false};
  std::thread first([&] {
    EXPECT_EQ(callWithRoom(calls, Clock::now() + 100ms), 0U);
    over = true;
  });
  EXPECT_TRUE(waitUntil([&] { return over || calls.waitingForRoom(1) == 1; }, 30s));
  std::thread second([&] { EXPECT_NE(callWithRoom(calls), 0U); });
  first.join();
  EXPECT_TRUE(calls.take(held, 1));
  second.join();
}

// What torch itself has wrapped.

std::vector<char> wrapped(MessageType inner, std::vector<char> payload) {
  // The type, and what torch's wrappers add: ids, and a map of devices.
  std::vector<at::IValue> extra{static_cast<std::int64_t>(inner), std::int64_t{12},
                                c10::Dict<std::string, std::string>()};
  auto pickled = torch::jit::pickle(c10::ivalue::Tuple::create(std::move(extra)));
  torch::distributed::rpc::writeWrappedPayload(payload, pickled);
  return payload;
}

// Values of remote() calls.

// The payload of a call that creates (0, number), as torch pickles its end.
MessagePtr creating(std::int64_t number) {
  std::vector<char> payload{'\x80', 2, '('};
  const auto add = [&payload](std::int64_t integer) {
    payload.insert(payload.end(), {'\x8a', 8});
    for (int i = 0; i < 8; ++i)
      payload.push_back(static_cast<char>(integer >> (8 * i)));
  };
  for (int i = 0; i < 2; ++i) {
    payload.insert(payload.end(), {'K', 0});
    add(number + i);
    payload.push_back('\x86');
  }
  payload.insert(payload.end(), {'t', '.'});
  return c10::make_intrusive<Message>(std::move(payload), std::vector<at::Tensor>(),
                                      MessageType::SCRIPT_REMOTE_CALL);
}

TEST(OrphanedRRefs, AValueWhoseCallIsSentAfterTheLossIsNone) {
  torch_rrefs::startIdsAnew(0);
  OrphanedRRefs orphans(0);
  const RRefKey drawn{0, torch_rrefs::idsMade() - 10};
  const auto call = creating(drawn.local_id);
  orphans.onTransmit(*call, 1);
  EXPECT_FALSE(orphans.contains(drawn, 1));
  orphans.onPeerLost(1);
  EXPECT_TRUE(orphans.contains(drawn, 1));
  orphans.onTransmit(*call, 1);
  EXPECT_FALSE(orphans.contains(drawn, 1));
  EXPECT_TRUE(orphans.contains({0, drawn.local_id - 1}, 1));
  orphans.onPeerLost(2);
  EXPECT_FALSE(orphans.contains(drawn, 1));
  orphans.onPeerLost(1);
  EXPECT_TRUE(orphans.contains(drawn, 1));
}

TEST(RRefCreation, OnlyTheAnswerThatNamesTheReferenceConfirmsIt) {
  using torch::distributed::rpc::RemoteRet;
  const auto answer = RemoteRet({1, 4}, {1, 5}).toMessage();
  const auto confirms = [&](MessageType type, const std::vector<char>& payload,
                            const std::optional<ForkIds>& created) {
    return confirmsCreation(type, payload, created);
  };
  const ForkIds created{{1, 4}, {1, 5}};
  EXPECT_TRUE(confirms(MessageType::REMOTE_RET, answer->payload(), created));
  EXPECT_TRUE(confirms(MessageType::REMOTE_RET, answer->payload(), std::nullopt));
  EXPECT_FALSE(confirms(MessageType::REMOTE_RET, answer->payload(), ForkIds{{1, 4}, {1, 6}}));
  EXPECT_FALSE(confirms(MessageType::REMOTE_RET, {'x'}, std::nullopt));
  EXPECT_FALSE(confirms(MessageType::SCRIPT_RET, answer->payload(), created));
  const auto once = wrapped(MessageType::REMOTE_RET, answer->payload());
  EXPECT_TRUE(confirms(MessageType::FORWARD_AUTOGRAD_RESP, once, created));
  EXPECT_FALSE(confirms(MessageType::FORWARD_AUTOGRAD_RESP, answer->payload(), created));
}

TEST(CallTable, ExpireInTimeAndTellTheNextDeadline) {
  CallTable calls;
  const auto start = Clock::now();
  calls.add(callTo(0, 100ms, start));
  calls.add(callTo(0, 300ms, start));
  calls.add(callTo(0, 0ms, start));  // never
  Clock::time_point next;
  EXPECT_TRUE(calls.takeExpired(start + 99ms, next).empty());
  EXPECT_EQ(next, start + 100ms);
  EXPECT_EQ(calls.takeExpired(start + 100ms, next).size(), 1U);
  EXPECT_EQ(next, start + 300ms);
  EXPECT_EQ(calls.takeExpired(start + 1h, next).size(), 1U);
  EXPECT_EQ(next, Clock::time_point::max());
  EXPECT_EQ(sizeOf(calls), 1U);
}

TEST(CallTable, EachCallIsTakenOnce) {
  CallTable calls;
  constexpr int kCalls = 20000;
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < kCalls; ++i)
    ids.push_back(calls.add(callTo(1, 1ms, Clock::now() - 1h)));
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (const auto id : ids)
        taken += calls.take(id, 1) ? 1 : 0;
    });
  }
  threads.emplace_back([&] {
    Clock::time_point next;
    taken += static_cast<int>(calls.takeExpired(Clock::now(), next).size());
  });
  threads.emplace_back([&] { taken += static_cast<int>(calls.takeAllOf(1).size()); });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(taken, kCalls);
}

// Policy.

constexpr worker_id_t kSender = 1;

TEST(RequestPolicy, ScriptSeesThroughWhatTorchWraps) {
  const std::vector<char> body(50, 'x');
  using enum MessageType;
  for (const MessageType python : {PYTHON_CALL, PYTHON_REMOTE_CALL, PYTHON_RREF_FETCH_CALL,
                                   PYTHON_RET, PYTHON_RREF_FETCH_RET}) {
    EXPECT_TRUE(refusal(RequestPolicy::kScript, python, body, kSender));
    EXPECT_FALSE(refusal(RequestPolicy::kAny, python, body, kSender));
    EXPECT_FALSE(refusal(RequestPolicy::kRegistered, python, body, kSender));
    const auto once = wrapped(python, body);
    EXPECT_TRUE(refusal(RequestPolicy::kScript, FORWARD_AUTOGRAD_REQ, once, kSender));
    EXPECT_EQ(innermost(FORWARD_AUTOGRAD_REQ, once).type, python);
    const auto twice = wrapped(FORWARD_AUTOGRAD_REQ, once);
    EXPECT_TRUE(refusal(RequestPolicy::kScript, RUN_WITH_PROFILING_REQ, twice, kSender));
    EXPECT_EQ(innermost(RUN_WITH_PROFILING_REQ, twice).type, python);
    EXPECT_EQ(innermost(RUN_WITH_PROFILING_REQ, twice).payload.size(), body.size());
  }
  for (const MessageType script : {SCRIPT_CALL, SCRIPT_REMOTE_CALL, SCRIPT_RREF_FETCH_CALL}) {
    const auto twice = wrapped(FORWARD_AUTOGRAD_REQ, wrapped(script, body));
    EXPECT_FALSE(refusal(RequestPolicy::kScript, RUN_WITH_PROFILING_REQ, twice, kSender));
  }
}

TEST(RequestPolicy, ScriptRefusesWrappersThatItCannotRead) {
  using enum MessageType;
  EXPECT_TRUE(refusal(RequestPolicy::kScript, FORWARD_AUTOGRAD_REQ, {}, kSender));
  EXPECT_TRUE(
      refusal(RequestPolicy::kScript, FORWARD_AUTOGRAD_REQ, std::vector<char>(40, 'x'), kSender));
  auto deep = std::vector<char>(5, 'x');
  for (int i = 0; i < 10; ++i)
    deep = wrapped(FORWARD_AUTOGRAD_REQ, deep);
  EXPECT_TRUE(refusal(RequestPolicy::kScript, FORWARD_AUTOGRAD_REQ, deep, kSender));
  EXPECT_FALSE(innermost(FORWARD_AUTOGRAD_REQ, deep).recognised);
  EXPECT_FALSE(innermost(FORWARD_AUTOGRAD_REQ, {}).recognised);
  EXPECT_TRUE(innermost(PYTHON_CALL, {}).recognised);
  EXPECT_THROW(parseRequestPolicy("none"), c10::Error);
  for (const char* name : {"any", "registered", "script"})
    EXPECT_STREQ(toString(parseRequestPolicy(name)), name);
}

// It would add to the gradients of what the value is made of, and wait for others.
TEST(RequestPolicy, NoBackwardPassIsBegunForAPeer) {
  using enum MessageType;
  const std::vector<char> body(50, 'x');
  const auto backward = wrapped(RREF_BACKWARD_REQ, body);
  EXPECT_TRUE(refusal(RequestPolicy::kScript, RREF_BACKWARD_REQ, body, kSender));
  EXPECT_TRUE(refusal(RequestPolicy::kScript, FORWARD_AUTOGRAD_REQ, backward, kSender));
  EXPECT_FALSE(refusal(RequestPolicy::kAny, RREF_BACKWARD_REQ, body, kSender));
}

// Lists of one list each, as torch's pickler writes them.
std::vector<char> nested(std::size_t depth) {
  std::string pickle = "\x80\x02";
  for (std::size_t i = 0; i < depth; ++i)
    pickle += "](";
  pickle += "K\x01" + std::string(depth, 'e') + ".";
  return {pickle.begin(), pickle.end()};
}

TEST(RequestPolicy, ValuesThatNestSoDeeplyThatTorchWouldCrashAreRefused) {
  using enum MessageType;
  for (const RequestPolicy policy : {RequestPolicy::kScript, RequestPolicy::kRegistered}) {
    EXPECT_FALSE(refusal(policy, SCRIPT_CALL, nested(100), kSender));
    EXPECT_TRUE(refusal(policy, SCRIPT_CALL, nested(100'000), kSender));
    const auto once = wrapped(SCRIPT_CALL, nested(100'000));
    EXPECT_TRUE(refusal(policy, FORWARD_AUTOGRAD_REQ, once, kSender));
  }
  EXPECT_FALSE(refusal(RequestPolicy::kAny, SCRIPT_CALL, nested(100'000), kSender));
}

at::IValue scriptObject(const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  const auto type = c10::ClassType::create(c10::QualifiedName("__torch__.mine.Point"), unit);
  type->addAttribute("x", c10::IntType::get());
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(unit, type), 1);
  object->setSlot(0, 5);
  return object;
}

at::IValue member(const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  const auto type = c10::EnumType::create(c10::QualifiedName("__torch__.mine.Colour"),
                                          c10::StringType::get(), {{"RED", "#f(("}}, unit);
  return at::IValue(c10::make_intrusive<c10::ivalue::EnumHolder>(type, "RED", "#f(("));
}

// What TorchScript knows, each of it twice.
std::vector<at::IValue> valuesOfScripts() {
  const auto pair = c10::TupleType::createNamed(
      c10::QualifiedName("__torch__.mine.Pair"), std::vector<std::string>{"a", "b"},
      std::vector<c10::TypePtr>{c10::IntType::get(), c10::TensorType::get()});
  c10::List<at::IValue> pairs(pair);
  pairs.push_back(c10::ivalue::Tuple::createNamed({1, at::ones({2})}, pair));
  c10::Dict<std::string, c10::List<std::int64_t>> dict;
  dict.insert("a [", c10::List<std::int64_t>({1, 1 << 20, std::int64_t{1} << 40, -1}));
  std::vector<at::IValue> values{
      at::IValue(),
      true,
      5,
      2.5,
      "text",
      c10::complex<double>(1, 2),
      c10::Device("cuda:3"),
      at::ones({3}),
      dict,
      pairs,
      c10::ivalue::Tuple::create({}),
      c10::List<double>({1.5}),
      c10::List<bool>({true}),
      c10::List<at::Tensor>({at::ones({1})}),
      c10::ivalue::Tuple::create(1, c10::ivalue::Tuple::create("a", 2.0))};
  for (int i = 0; i < 300; ++i)  // more than a byte can count
    values.emplace_back("text " + std::to_string(i));
  const auto once = values;
  values.insert(values.end(), once.begin(), once.end());
  return values;
}

// Why a call with this argument is refused; empty: it is not.
std::string refusalOf(RequestPolicy policy, at::IValue value) {
  std::vector<at::Tensor> tensors;
  const auto payload = torch::jit::pickle(c10::ivalue::Tuple::create(std::move(value)), &tensors);
  return refusal(policy, MessageType::SCRIPT_CALL, payload, kSender).value_or("");
}

TEST(RequestPolicy, WhatTorchsPicklerWritesIsRead) {
  for (const RequestPolicy policy : {RequestPolicy::kScript, RequestPolicy::kRegistered})
    EXPECT_EQ(refusalOf(policy, c10::ivalue::Tuple::create(valuesOfScripts())), "");
}

TEST(RequestPolicy, ObjectsOfTorchScriptWhichTorchDoesNotReadAreRefused) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  for (const RequestPolicy policy : {RequestPolicy::kScript, RequestPolicy::kRegistered}) {
    EXPECT_TRUE(refusalOf(policy, scriptObject(unit)).starts_with("it has an object"));
    EXPECT_TRUE(refusalOf(policy, member(unit)).starts_with("it has an object"));
  }
}

// All that this process has loaded.
TEST(RequestPolicy, OperatorsThatDoMoreThanComputeAreRefused) {
  std::set<std::string> refused;
  int served = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const c10::FunctionSchema& schema = op->schema();
    EXPECT_FALSE(refusal(RequestPolicy::kAny, schema));
    const auto why = refusal(RequestPolicy::kScript, schema);
    EXPECT_EQ(refusal(RequestPolicy::kRegistered, schema).has_value(), why.has_value());
    const bool own = schema.name().starts_with("aten::");
    if (!own) {
      EXPECT_TRUE(why) << schema.name();
    } else if (why) {
      refused.insert(schema.name());
    } else {
      ++served;
    }
  }
  // Those of files, and those that believe their caller's number of arguments.
  std::set<std::string> expected{"aten::einsum",        "aten::format",
                                 "aten::from_file",     "aten::has_torch_function",
                                 "aten::percentFormat", "aten::save"};
  // Those that do more than compute.
  expected.insert({"aten::_assert_scalar", "aten::_cufft_clear_plan_cache",
                   "aten::_cufft_set_plan_cache_max_size", "aten::_print", "aten::backward",
                   "aten::get_gradients", "aten::initial_seed", "aten::manual_seed", "aten::seed",
                   "aten::set_grad_enabled", "aten::sym_constrain_range",
                   "aten::sym_constrain_range_for_size", "aten::wait", "aten::warn"});
  // Those of TorchScript's interpreter that change a list or dict and return nothing.
  expected.insert({"aten::Delete", "aten::_set_item", "aten::clear", "aten::extend", "aten::insert",
                   "aten::remove", "aten::reverse", "aten::sort", "aten::update"});
  EXPECT_EQ(refused, expected);
  EXPECT_GT(served, 1000);
}

}  // namespace
}  // namespace weft::rpc
