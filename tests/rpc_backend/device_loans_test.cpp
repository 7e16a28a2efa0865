// What is lent and borrowed of device memory, without a device.
#include "rpc_backend/devices/device_loans.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using std::chrono::steady_clock;

const MessageKey kRequest{1, WireKind::kRequest, 7};
const MessageKey kResponse{1, WireKind::kResponse, 7};
const MessageKey kOther{2, WireKind::kRequest, 7};

void nobodyListens(const MessageKey&) {}

TEST(DeviceLoans, EachEndsOnce) {
  DeviceLoans loans(&nobodyListens);
  const auto memory = std::make_shared<int>();
  loans.add(kRequest, memory);
  loans.add(kResponse, memory);
  EXPECT_EQ(loans.size(), 2U);
  EXPECT_EQ(loans.end(kRequest).kept, memory);
  EXPECT_EQ(loans.end(kRequest).kept, nullptr);
  EXPECT_EQ(loans.end(kOther).kept, nullptr);
  EXPECT_EQ(loans.size(), 1U);
}

TEST(DeviceLoans, ALostPeerKeepsNothing) {
  DeviceLoans loans(&nobodyListens);
  for (const auto& message : {kRequest, kResponse, kOther})
    loans.add(message, std::make_shared<int>());
  EXPECT_EQ(loans.endAllOf(1).size(), 2U);
  EXPECT_EQ(loans.size(), 1U);
}

TEST(DeviceLoans, ATaskWaitsForALoanThatIsThere) {
  DeviceLoans loans(&nobodyListens);
  EXPECT_FALSE(loans.whenEnded(kRequest, [] {}));
  loans.add(kRequest, std::make_shared<int>());
  bool done = false;
  EXPECT_TRUE(loans.whenEnded(kRequest, [&] { done = true; }));
  loans.end(kRequest).when_ended();
  EXPECT_TRUE(done);
}

TEST(DeviceLoans, TheSenderHearsOfAReturnUntilTheEnd) {
  std::vector<MessageKey> told;
  DeviceLoans loans([&](const MessageKey& message) { told.push_back(message); });
  loans.borrow();
  loans.giveBack(kRequest);
  loans.borrow();
  loans.close();
  loans.giveBack(kResponse);
  EXPECT_EQ(told, std::vector<MessageKey>{kRequest});
}

TEST(DeviceLoans, SettlesWhenNothingIsOut) {
  DeviceLoans loans(&nobodyListens);
  const auto start = steady_clock::now();
  loans.settle(std::chrono::hours(1));
  loans.borrow();
  loans.settle(milliseconds(20));
  EXPECT_GE(steady_clock::now() - start, milliseconds(20));
  EXPECT_LT(steady_clock::now() - start, std::chrono::minutes(10));
}

}  // namespace
}  // namespace weft::rpc
