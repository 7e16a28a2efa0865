// The small parts: addresses, keys, interfaces, heartbeats, states.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <span>

#include "tests/transport/recorder.h"
#include "transport/auth/auth_key.h"
#include "transport/base/log.h"
#include "transport/io/address.h"
#include "transport/io/interface.h"
#include "transport/io/stream.h"
#include "transport/peer/peer_state.h"
#include "transport/session/heartbeat.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

TEST(Address, ReadsWhatItWrites) {
  for (const char* text : {"weft1;tcp=10.0.0.5:41233;unix=weft-3f2a;host=abc-1",
                           "weft1;tcp=[::1]:1", "weft1;unix=u", "weft1;tcp=[fe80::1%eth0]:65535"}) {
    const Result<Address> address = parseAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(formatAddress(address.value()), text);
  }
  EXPECT_TRUE(parseAddress("weft1;later=1;unix=u").ok());  // unknown keys are for later versions
}

TEST(Address, RefusesWhatIsNone) {
  const std::vector<std::string> bad = {"",
                                        "weft2;unix=u",
                                        "weft1",
                                        "weft1;",
                                        "weft1;tcp=",
                                        "weft1;tcp=1.2.3.4",
                                        "weft1;tcp=1.2.3.4:",
                                        "weft1;tcp=1.2.3.4:0",
                                        "weft1;tcp=1.2.3.4:65536",
                                        "weft1;tcp=1.2.3.4:8x",
                                        "weft1;tcp=:80",
                                        "weft1;tcp=[::1:80",
                                        "weft1;tcp=[]:80",
                                        "weft1;unix=",
                                        "weft1;unix=" + std::string(101, 'u'),
                                        "weft1;unix",
                                        "weft1;unix=a\nb",
                                        "weft1;unix=u;x=" + std::string(600, 'x')};
  for (const std::string& text : bad)
    EXPECT_FALSE(parseAddress(text).ok()) << text;
}

TEST(HostIdentity, IsThereAndStable) {
  EXPECT_GT(hostIdentity().size(), 36U);
  EXPECT_EQ(hostIdentity(), hostIdentity());
}

// Descriptors from one end of a Unix socket to the other.
class PassedFds : public ::testing::Test {
 protected:
  PassedFds() : PassedFds(connected()) { reader.acceptFds(); }
  // Each with a byte.
  void pass(std::span<const int> fds) {
    char byte = 0;
    iovec one{&byte, 1};
    EXPECT_EQ(writer.write({&one, 1}, fds).count, 1U);
    EXPECT_EQ(reader.read({&one, 1}).count, 1U);
  }
  // More than write() allows in one go.
  void passUnchecked(std::size_t count) {
    char byte = 0;
    iovec one{&byte, 1};
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    msghdr message{};
    message.msg_iov = &one;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> fds(count, writer.pollFd());
    std::memcpy(CMSG_DATA(head), fds.data(), count * sizeof(int));
    EXPECT_EQ(::sendmsg(writer.pollFd(), &message, 0), 1);
    EXPECT_EQ(reader.read({&one, 1}).count, 1U);
  }
  SocketStream reader, writer;

 private:
  explicit PassedFds(std::array<int, 2> ends)
      : reader(UniqueFd(ends[0]), "unix"), writer(UniqueFd(ends[1]), "unix") {}
  static std::array<int, 2> connected() {
    std::array<int, 2> ends{-1, -1};
    constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    EXPECT_EQ(::socketpair(AF_UNIX, kType, 0, ends.data()), 0);
    return ends;
  }
};

// No descriptor may take the place of one before it that was lost: then a tensor would get the
// bytes of another one's file. The system drops the last of these, as it drops those for which this
// process has no room in its table. (With a full table the sanitizers themselves fail.)
TEST_F(PassedFds, BehindOneThatWasLostAllAreLost) {
  passUnchecked(kMaxFds + 1);
  const std::array<int, 1> fd{writer.pollFd()};
  pass(fd);
  for (std::size_t i = 0; i < kMaxFds; ++i)
    EXPECT_TRUE(reader.takeFd().fd.valid());
  EXPECT_TRUE(reader.takeFd().lost);
  pass(fd);
  const Stream::ReceivedFd next = reader.takeFd();
  EXPECT_TRUE(next.lost);
  EXPECT_FALSE(next.fd.valid());
}

TEST_F(PassedFds, OneThatDidNotFitIsSaidToBeLost) {
  const std::vector<int> most(kMaxFds, writer.pollFd());
  for (int i = 0; i < 3; ++i)
    pass(most);
  for (std::size_t i = 0; i < 2 * kMaxFds; ++i)
    EXPECT_TRUE(reader.takeFd().fd.valid());
  EXPECT_TRUE(reader.takeFd().lost);
}

class KeyFile {
 public:
  explicit KeyFile(const std::string& text, mode_t mode = 0600)
      : path(::testing::TempDir() + "weft_key_test") {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  }
  ~KeyFile() { std::remove(path.c_str()); }
  std::string path;
};

TEST(KeyCheck, TellsWhetherKeysAreTheSameInOneGroupOnly) {
  const AuthKey key = AuthKey::fromHex(std::string(64, 'a')).value();
  const AuthKey same = AuthKey::fromHex(std::string(64, 'a')).value();
  const AuthKey other = AuthKey::fromHex(std::string(63, 'a') + 'b').value();
  EXPECT_EQ(keyCheck(key, "group"), keyCheck(same, "group"));
  EXPECT_EQ(keyCheck(key, "group").size(), 64U);
  EXPECT_NE(keyCheck(key, "group"), keyCheck(other, "group"));
  EXPECT_NE(keyCheck(key, "group"), keyCheck(key, "another group"));
}

TEST(GroupSecret, IsReadWholeOrNotAtAll) {
  const std::string text = newSecretText().value();
  const GroupSecret secret = parseSecret(text).value();
  EXPECT_EQ(secret.group_id + secret.key.toHex(), text);
  EXPECT_FALSE(secret.from_file);
  EXPECT_NE(newSecretText().value(), text);
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_EQ(parseSecret(text.substr(0, length)).error().code(), ErrorCode::kProtocol) << length;
  EXPECT_FALSE(parseSecret(text + "0").ok());
  EXPECT_FALSE(parseSecret(text.substr(0, 127) + "g").ok());
}

TEST(AuthKey, ComesFromAFileOrNotAtAll) {
  const std::string digits = std::string(62, '0') + "fF";
  const KeyFile good(" \n" + digits + "\n");
  const Result<AuthKey> key = AuthKey::fromFile(good.path);
  ASSERT_TRUE(key.ok()) << key.error().text();
  EXPECT_EQ(key.value().toHex(), std::string(62, '0') + "ff");

  const auto refused = [](const std::string& text, mode_t mode = 0600) {
    const KeyFile file(text, mode);
    const Result<AuthKey> result = AuthKey::fromFile(file.path);
    return !result.ok() && result.error().text().find(file.path) != std::string::npos;
  };
  EXPECT_TRUE(refused(digits.substr(1)));
  EXPECT_TRUE(refused(digits + "0"));
  EXPECT_TRUE(refused("x" + digits.substr(1)));
  EXPECT_TRUE(refused(std::string(64, '0')));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(std::string(10'000, 'a')));
  EXPECT_TRUE(refused(digits, 0644));
  EXPECT_TRUE(refused(digits, 0602));
  EXPECT_TRUE(refused(digits, 0660));
  EXPECT_FALSE(refused(digits, 0640));
  EXPECT_FALSE(AuthKey::fromFile("/nonexistent/key").ok());
  EXPECT_FALSE(AuthKey::fromFile("/tmp").ok());
}

TEST(AuthKey, RandomOnesDiffer) {
  EXPECT_NE(AuthKey::random().value().toHex(), AuthKey::random().value().toHex());
  EXPECT_FALSE(AuthKey().valid());
}

TEST(Interface, LoopbackMastersAreServedOnLoopback) {
  EXPECT_EQ(chooseListenAddress("localhost", "").value().address, "127.0.0.1");
  EXPECT_EQ(chooseListenAddress("127.0.0.1", "").value().address, "127.0.0.1");
  EXPECT_EQ(chooseListenAddress("::1", "").value().address, "::1");
}

TEST(Interface, WhatIsWantedWinsOrIsAnError) {
  EXPECT_EQ(chooseListenAddress("localhost", "lo").value().address, "127.0.0.1");
  EXPECT_EQ(chooseListenAddress("", "127.0.0.1").value().address, "127.0.0.1");
  const Result<ListenChoice> none = chooseListenAddress("", "nosuch0");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text().find("lo 127.0.0.1"), std::string::npos) << none.error().text();
}

TEST(Interface, TheHostsOwnNameGivesAnAddressThatCanBeListenedOn) {
  const Result<ListenChoice> choice = chooseListenAddress("", "");
  ASSERT_TRUE(choice.ok()) << choice.error().text();
  Recorder recorder;
  EndpointOptions options = optionsFor(0, Via::kTcp);
  options.listen_address = choice.value().address;
  EXPECT_NE(openEndpoint(options, recorder), nullptr);
}

TEST(Interface, AMasterThatCannotBeFoundIsAnError) {
  EXPECT_FALSE(chooseListenAddress("no-such-host.invalid", "").ok());
}

TEST(Heartbeat, BeatsWhenNothingWasSentAndSuspectsSilence) {
  using Verdict = Heartbeat::Verdict;
  const Heartbeat::Time start{};
  const auto at = [&](int ms) { return start + milliseconds(ms); };
  const milliseconds none(0);
  Heartbeat heartbeat(start, milliseconds(1000), milliseconds(5000));
  EXPECT_EQ(heartbeat.tick(at(500), none, 0, 0), Verdict::kFine);
  EXPECT_EQ(heartbeat.tick(at(1000), none, 0, 0), Verdict::kSend);
  EXPECT_EQ(heartbeat.tick(at(1500), none, 40, 0), Verdict::kFine);  // sent since
  EXPECT_EQ(heartbeat.tick(at(4500), none, 80, 7), Verdict::kFine);  // and heard
  EXPECT_EQ(heartbeat.tick(at(6900), none, 90, 7), Verdict::kFine);
  EXPECT_EQ(heartbeat.tick(at(7000), none, 95, 7), Verdict::kQuiet);
  EXPECT_EQ(heartbeat.tick(at(9400), none, 90, 7), Verdict::kQuiet);
  EXPECT_EQ(heartbeat.limit(), at(9500));
  EXPECT_EQ(heartbeat.tick(at(9500), none, 95, 7), Verdict::kSilent);
  EXPECT_EQ(heartbeat.tick(at(9500), none, 95, 8), Verdict::kFine);  // it did speak
}

TEST(Heartbeat, AHeartbeatThatIsDueCannotBeMissed) {
  // Even with the shortest timeout allowed, two of them fit before a connection is given up.
  Heartbeat heartbeat(Heartbeat::Time{}, milliseconds(1000), milliseconds(2000));
  EXPECT_EQ(heartbeat.tick(Heartbeat::Time{} + milliseconds(1400), milliseconds(0), 1, 0),
            Heartbeat::Verdict::kFine);
  EXPECT_EQ(heartbeat.tick(Heartbeat::Time{} + milliseconds(1500), milliseconds(0), 2, 0),
            Heartbeat::Verdict::kQuiet);
}

TEST(Heartbeat, TimeInWhichThisProcessStoodStillDoesNotCount) {
  using Verdict = Heartbeat::Verdict;
  const Heartbeat::Time start{};
  Heartbeat heartbeat(start, milliseconds(1000), milliseconds(5000));
  // One tick an hour late.
  EXPECT_EQ(heartbeat.tick(start + std::chrono::hours(1), std::chrono::hours(1) - milliseconds(500),
                           1, 0),
            Verdict::kFine);
  EXPECT_EQ(
      heartbeat.tick(start + std::chrono::hours(1) + milliseconds(4500), milliseconds(0), 2, 0),
      Verdict::kSilent);
}

TEST(PeerState, EveryLifeEndsAndNoneBeginsAgain) {
  using enum PeerState;
  int allowed = 0;
  for (std::size_t i = 0; i < kPeerStates; ++i) {
    const auto from = static_cast<PeerState>(i);
    SCOPED_TRACE(i);
    EXPECT_FALSE(mayFollow(from, from));
    EXPECT_FALSE(mayFollow(kFinished, from));
    EXPECT_FALSE(mayFollow(from, kIdle));
    EXPECT_EQ(mayFollow(from, kClosed), from < kLost);
    EXPECT_EQ(mayFollow(from, kFinished), from == kLost || from == kClosed);
    // Whoever leaves a peer hears no more of it.
    EXPECT_EQ(mayFollow(from, kLost), from < kLeaving);
    for (std::size_t to = 0; to < kPeerStates; ++to)
      allowed += mayFollow(from, static_cast<PeerState>(to)) ? 1 : 0;
  }
  EXPECT_EQ(allowed, 25);
}

std::string g_logged;

TEST(Log, GoesWhereItIsTold) {
  g_logged.clear();
  setLogSink([](LogLevel, const std::string& text) { g_logged += text; });
  log(LogLevel::kInfo, "quiet");
  log(LogLevel::kWarning, "loud");
  setLogSink(nullptr);
  EXPECT_EQ(g_logged, "loud");
}

TEST(Log, WhatPeersSayLooksLikeNoLineOfTheLog) {
  g_logged.clear();
  setLogSink([](LogLevel, const std::string& text) { g_logged += text; });
  log(LogLevel::kWarning, "h\u00e4\ttwo\n[W] weft: \x1b[2J\xff\xc2\x9b\xed\xa0\x80\x7f\r.");
  setLogSink(nullptr);
  EXPECT_EQ(g_logged,
            "h\u00e4\ttwo\n    [W] weft: \\x1b[2J\\xff\\xc2\\x9b\\xed\\xa0\\x80\\x7f\\x0d.");
}

}  // namespace
}  // namespace weft::transport
