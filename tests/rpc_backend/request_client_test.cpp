// The calls of an agent, as its endpoint sees them.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <optional>

#include "tests/rpc_backend/agent_world.h"
#include "tests/rpc_backend/fake_endpoint.h"
#include "tests/support/waiting.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)

struct World : testing::AgentWorld {
  World() {
    context.parts = alive;
    sender.use(endpoint);
  }
  FuturePtr call(milliseconds timeout) {
    const auto request = c10::make_intrusive<Message>(
        std::vector<char>{}, std::vector<at::Tensor>{}, MessageType::SCRIPT_CALL);
    return client.send(1, request, timeout, {});
  }

  const std::shared_ptr<testing::FakeEndpoint> endpoint = std::make_shared<testing::FakeEndpoint>();
  const std::shared_ptr<void> alive = std::make_shared<int>();
};

TEST(RequestClient, ACallWaitsForRoomInTheQueueNoLongerThanItsTimeout) {
  World world;
  world.call(1000ms);
  world.call(0ms);  // never
  world.call(1h);
  EXPECT_EQ(world.endpoint->waits(), (std::vector<milliseconds>{1000ms, 30s, 30s}));
}

TEST(RequestClient, NothingIsLeftOfACallWhoseSendThrows) {
  World world;
  RequestClient::Hooks before;  // the call is in the table
  before.fault = [](const Message&) -> std::optional<std::string> { throw std::bad_alloc(); };
  RequestClient::Hooks after;
  after.delay = [](MessageType) -> milliseconds { throw std::bad_alloc(); };
  for (const RequestClient::Hooks& hooks : {before, after}) {
    RequestClient client(world.context, world.sender, world.group, world.rrefs, hooks);
    const auto request = c10::make_intrusive<Message>(
        std::vector<char>{}, std::vector<at::Tensor>{}, MessageType::SCRIPT_CALL);
    EXPECT_THROW(client.send(1, request, 0ms, {}), std::bad_alloc);
    EXPECT_TRUE(client.oldestCalls(1).empty());
    EXPECT_EQ(world.context.metrics.client_calls.value(), 0);
  }
}

// A long call is in flight all the time, and short ones come and go.
TEST(RequestClient, CallsThatExpireLeaveNoTimersBehind) {
  World world;
  world.call(1h);
  std::size_t waiting = 0;  // timers of the long call
  for (int i = 0; i < 20; ++i) {
    const auto call = world.call(1ms);
    const auto expires = [&] {
      for (const auto& [delay, task] : world.endpoint->planned())
        delay < 1min ? task() : static_cast<void>(++waiting);
      return call->completed();
    };
    EXPECT_TRUE(waitUntil(expires, 10s));
    EXPECT_TRUE(call->hasError());
  }
  EXPECT_EQ(waiting, 1U);
}

}  // namespace
}  // namespace weft::rpc
