// The rules of a Session, one by one.
#include "transport/session/session.h"

#include "tests/transport/recorder.h"
#include "transport/channel/frame_order.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

TEST(Session, TwoSidesRecogniseTheirSession) {
  Session left(11);
  Session right(22);
  EXPECT_EQ(right.match(left.claim()), Session::Match::kSame);
  left.beginLink(right.claim());
  right.beginLink({11, 0, 0, 1});
  left.breakOff({});
  right.breakOff({});
  EXPECT_EQ(right.match(left.claim()), Session::Match::kSame);
  EXPECT_EQ(left.match(right.claim()), Session::Match::kSame);
  EXPECT_FALSE(right.isLate(left.claim()));
  // One that was lost and begun again, under another number.
  const Session anew(33);
  EXPECT_EQ(right.match(anew.claim()), Session::Match::kAnother);
  EXPECT_EQ(anew.match(right.claim()), Session::Match::kUnknown);
}

TEST(Session, ASideThatMissedALinkCatchesUp) {
  Session dialler(11);
  Session acceptor(22);
  acceptor.beginLink(dialler.claim());  // its proof never arrived
  EXPECT_TRUE(acceptor.isLate(dialler.claim()));
  acceptor.breakOff({});
  EXPECT_EQ(acceptor.match(dialler.claim()), Session::Match::kSame);
  const SessionClaim second = acceptor.claim();
  acceptor.beginLink(dialler.claim());
  dialler.beginLink(second);
  EXPECT_FALSE(acceptor.isLate({11, 22, 0, 3}));
  EXPECT_TRUE(acceptor.isLate({11, 22, 0, 2}));
  dialler.breakOff({});
  EXPECT_EQ(dialler.claim().link, 3U);
}

TEST(Session, ItEndsWhenItsTimeIsOverAndTimeOnesOwnProcessMissedDoesNotCount) {
  const Session::Time start{};
  Session session(11);
  EXPECT_FALSE(session.expired(start + milliseconds(1000)));
  session.beginLink({22, 0, 0, 1});
  EXPECT_FALSE(session.expired(start + milliseconds(1000)));
  session.breakOff(start + milliseconds(100));
  EXPECT_FALSE(session.expired(start + milliseconds(99)));
  EXPECT_TRUE(session.expired(start + milliseconds(100)));
  session.postpone(milliseconds(50));
  EXPECT_FALSE(session.expired(start + milliseconds(149)));
  session.beginLink({22, 0, 0, 2});
  EXPECT_FALSE(session.expired(start + milliseconds(1000)));
  session.postpone(milliseconds(50));
  EXPECT_FALSE(session.expired(start + milliseconds(1000)));
}

TEST(Session, AcksOfTheirOwnGoOnlyWhenAskedForOrOverdue) {
  Session session(11);
  session.beginLink({22, 0, 0, 1});
  session.took(1, false);
  EXPECT_FALSE(session.ackAsked());
  EXPECT_FALSE(session.ackOverdue());  // it came since the last tick
  EXPECT_TRUE(session.ackOverdue());
  session.noteAckSent(1);
  EXPECT_FALSE(session.ackOverdue());  // an answer carried it
  session.took(2, true);
  EXPECT_TRUE(session.ackAsked());
  session.noteAckSent(2);
  EXPECT_FALSE(session.ackAsked());
  session.took(3, false);
  EXPECT_FALSE(session.ackAsked());
}

TEST(FrameOrder, AsksForAcksLongBeforeASenderMustWait) {
  const auto frameOf = [](std::size_t bytes) {
    const std::string text(bytes - FrameHead::kBytes, 'x');
    return std::move(OutFrame::message(textMessage(text), {})).value();
  };
  const auto asks = [](FrameOrder& order, OutFrame frame) {
    order.take(frame);
    std::array<iovec, 4> parts;
    EXPECT_GT(frame.gather(parts), 0U);
    const std::span<const std::byte, FrameHead::kBytes> head(
        static_cast<const std::byte*>(parts[0].iov_base), FrameHead::kBytes);
    return decodeFrameHead(head, {}).value().flags == FrameHead::kAckNow;
  };
  Session session;
  FrameOrder order(session, 8000, true);
  std::uint64_t unasked = 0;
  int asked = 0;
  for (int i = 0; i < 100; ++i) {
    unasked += 300;
    if (asks(order, frameOf(300))) {
      unasked = 0;
      ++asked;
    }
    EXPECT_LT(unasked, 1000U);
  }
  EXPECT_EQ(asked, 25);
  FrameOrder roomy(session, std::uint64_t{1} << 30, true);
  asked = 0;
  for (int i = 0; i < 5120; ++i)
    asked += asks(roomy, frameOf(100)) ? 1 : 0;
  EXPECT_EQ(asked, 10);
}

}  // namespace
}  // namespace weft::transport
