// The flow control between two ranks, both sides of it.
#include "c10d_plugin/net/mailbox/credit_window.h"

#include <gtest/gtest.h>

namespace weft::collectives {
namespace {

TEST(CreditWindow, AReceiverNeverKeepsMoreThanASenderMaySend) {
  constexpr std::uint64_t kWindow = 1000;
  CreditWindow sender(kWindow);
  CreditWindow receiver(kWindow);
  std::uint64_t sent = 0;
  while (sender.spend(100)) {
    sent += 100;
    ASSERT_TRUE(receiver.keep(100));
  }
  EXPECT_EQ(sent, kWindow);
  EXPECT_FALSE(receiver.keep(1));
}

TEST(CreditWindow, GrantsAQuarterAtATime) {
  CreditWindow receiver(1000);
  ASSERT_TRUE(receiver.keep(300));
  EXPECT_EQ(receiver.consume(200), 0U);
  EXPECT_EQ(receiver.consume(50), 250U);
  EXPECT_EQ(receiver.consume(50), 0U);
}

TEST(CreditWindow, AGrantNeverExceedsTheWindow) {
  CreditWindow sender(1000);
  ASSERT_TRUE(sender.spend(400));
  sender.refill(~std::uint64_t{0});
  EXPECT_TRUE(sender.spend(1000));
  EXPECT_FALSE(sender.spend(1));
}

}  // namespace
}  // namespace weft::collectives
