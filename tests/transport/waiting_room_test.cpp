// Who goes when a room is full.
#include "transport/connect/waiting_room.h"

#include "gtest/gtest.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kSource = 7;
constexpr std::uint64_t kOther = 8;

// Lets `id` in, in the place of the one that has to go.
std::optional<std::uint64_t> come(WaitingRoom& room, std::uint64_t id, std::uint64_t source) {
  const std::optional<std::uint64_t> gone = room.inTheWayOf(source);
  if (gone && !room.leave(*gone)) ADD_FAILURE() << *gone << " is not here";
  room.enter(id, source);
  return gone;
}

TEST(WaitingRoom, ASourceThatHasItsShareLosesItsOldest) {
  WaitingRoom room(10, 3);
  EXPECT_EQ(come(room, 0, kOther), std::nullopt);
  for (std::uint64_t id = 1; id <= 3; ++id)
    EXPECT_EQ(come(room, id, kSource), std::nullopt);
  EXPECT_EQ(come(room, 4, kSource), 1U);
  EXPECT_EQ(come(room, 5, kSource), 2U);
  EXPECT_TRUE(room.has(0));
}

TEST(WaitingRoom, AFullRoomLosesTheOldestOfTheSourceThatHasMost) {
  WaitingRoom room(4, 3);
  come(room, 0, 1);
  come(room, 1, 2);
  come(room, 2, 2);
  come(room, 3, 3);
  EXPECT_EQ(come(room, 4, 4), 1U);
  // Now all have one each: the oldest of all.
  EXPECT_EQ(come(room, 5, 5), 0U);
  EXPECT_EQ(come(room, 6, 1), 2U);
}

TEST(WaitingRoom, OneThatLeftMakesRoom) {
  WaitingRoom room(2, 2);
  come(room, 0, kSource);
  come(room, 1, kSource);
  EXPECT_TRUE(room.leave(0));
  EXPECT_FALSE(room.leave(0));
  EXPECT_EQ(come(room, 2, kOther), std::nullopt);
}

TEST(WaitingRoom, WithoutRoomForAnyoneThereIsRoomForOne) {
  WaitingRoom room(0, 0);
  EXPECT_EQ(come(room, 0, kSource), std::nullopt);
  EXPECT_EQ(come(room, 1, kOther), 0U);
}

}  // namespace
}  // namespace weft::transport
