#include "transport/auth/handshake.h"

#include <functional>
#include <random>

#include "tests/transport/recorder.h"
#include "transport/base/bytes.h"

namespace weft::transport {
namespace {

using Status = Handshake::Status;

class Policy : public AcceptPolicy {
 public:
  RefusalCode answer = RefusalCode::kNone;
  int asked = 0;
  SessionClaim claimed;
  SessionClaim own{77, 0, 8, 3};
  RefusalCode admit(const Hello&, const SessionClaim& theirs, SessionClaim& ours) override {
    ++asked;
    claimed = theirs;
    ours = own;
    return answer;
  }
};

Identity identity(const std::string& name, std::int32_t rank) {
  Identity self;
  self.name = name;
  self.rank = rank;
  self.incarnation = 1000 + static_cast<std::uint64_t>(rank);
  self.group = sha256(std::string("group"));
  self.key = testKey();
  return self;
}

Nonce nonceOf(std::uint8_t value) {
  Nonce nonce{};
  nonce.fill(value);
  return nonce;
}

// Carries output of one side to the other, in pieces, until both are quiet.
void exchange(Handshake& dialler, Handshake& acceptor, std::size_t piece = 1000,
              const std::function<void(bool to_acceptor, std::vector<std::byte>&)>& tamper = {}) {
  std::vector<std::byte> to_acceptor;
  std::vector<std::byte> to_dialler;
  const auto pour = [&](std::vector<std::byte>& from, Handshake& into) {
    bool moved = false;
    while (!from.empty() && into.wanted() > 0) {
      const std::size_t some = std::min({from.size(), into.wanted(), piece});
      into.feed(std::span(from).first(some));
      from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(some));
      moved = true;
    }
    return moved;
  };
  const auto take = [&](Handshake& from, std::vector<std::byte>& into, bool towards_acceptor) {
    std::vector<std::byte> out = from.output();
    if (tamper && !out.empty()) tamper(towards_acceptor, out);
    into.insert(into.end(), out.begin(), out.end());
  };
  bool moved = true;
  while (moved) {
    take(dialler, to_acceptor, true);
    moved = pour(to_acceptor, acceptor);
    take(acceptor, to_dialler, false);
    moved = pour(to_dialler, dialler) || moved;
  }
  EXPECT_TRUE(to_dialler.empty() || dialler.wanted() == 0);
}

struct Duo {
  Identity left = identity("left", 1);
  Identity right = identity("right", 2);
  std::int32_t target_rank = 2;
  std::string target_name = "right";
  Policy policy;
  SessionClaim claim{55, 77, 9, 3};

  std::pair<Handshake, Handshake> run(
      std::size_t piece = 1000,
      const std::function<void(bool, std::vector<std::byte>&)>& tamper = {}) {
    Handshake dialler = Handshake::dialler(left, target_rank, target_name, nonceOf(next_++), claim);
    Handshake acceptor = Handshake::acceptor(right, nonceOf(next_++), policy);
    exchange(dialler, acceptor, piece, tamper);
    return {std::move(dialler), std::move(acceptor)};
  }

 private:
  std::uint8_t next_ = 1;
};

TEST(Handshake, TwoThatAgreeLearnEachOther) {
  for (const std::size_t piece : {1UL, 5UL, 1000UL}) {
    Duo duo;
    const auto [dialler, acceptor] = duo.run(piece);
    ASSERT_EQ(dialler.status(), Status::kDone);
    ASSERT_EQ(acceptor.status(), Status::kDone);
    EXPECT_EQ(dialler.peer().name, "right");
    EXPECT_EQ(dialler.peer().incarnation, 1002U);
    EXPECT_EQ(acceptor.peer().name, "left");
    EXPECT_EQ(acceptor.peer().rank, 1);
    EXPECT_EQ(duo.policy.asked, 1);
    EXPECT_EQ(acceptor.wanted(), 0U);
    EXPECT_EQ(duo.policy.claimed, duo.claim);
    EXPECT_EQ(acceptor.peerClaim(), duo.claim);
    EXPECT_EQ(dialler.peerClaim(), duo.policy.own);
  }
}

void expectRefused(const std::pair<Handshake, Handshake>& sides, RefusalCode code) {
  EXPECT_EQ(sides.second.status(), Status::kRefused);
  EXPECT_EQ(sides.second.refusal(), code);
  EXPECT_EQ(sides.first.status(), Status::kRefusedByPeer);
  EXPECT_EQ(sides.first.refusal(), code);
}

TEST(Handshake, AWrongKeyIsRefusedBeforeTheEndpointIsAsked) {
  Duo duo;
  duo.left.key = AuthKey::fromHex(std::string(64, 'b')).value();
  expectRefused(duo.run(), RefusalCode::kKey);
  EXPECT_EQ(duo.policy.asked, 0);
}

TEST(Handshake, AnotherGroupIsRefused) {
  Duo duo;
  duo.left.group = sha256(std::string("another group"));
  expectRefused(duo.run(), RefusalCode::kGroup);
}

TEST(Handshake, OneMeantForAnotherRankOrNameIsRefused) {
  Duo rank;
  rank.target_rank = 3;
  expectRefused(rank.run(), RefusalCode::kIdentity);
  Duo name;
  name.target_name = "rihgt";
  expectRefused(name.run(), RefusalCode::kIdentity);
  Duo same;
  same.left.rank = 2;  // claims the acceptor's own rank
  expectRefused(same.run(), RefusalCode::kIdentity);
}

TEST(Handshake, TheEndpointsRefusalReachesTheDialler) {
  for (const RefusalCode code :
       {RefusalCode::kDuplicate, RefusalCode::kStale, RefusalCode::kIdentity}) {
    Duo duo;
    duo.policy.answer = code;
    expectRefused(duo.run(), code);
  }
}

TEST(Handshake, AnotherVersionIsToldApart) {
  Duo duo;
  expectRefused(duo.run(1000,
                        [](bool to_acceptor, std::vector<std::byte>& out) {
                          if (to_acceptor) storeLittle<std::uint16_t>(out.data() + 8, 7);
                        }),
                RefusalCode::kVersion);
}

// The acceptor's nonce is new.
TEST(Handshake, ARepeatedConversationFails) {
  Duo duo;
  std::vector<std::vector<std::byte>> recorded;
  duo.run(1000, [&](bool to_acceptor, std::vector<std::byte>& out) {
    if (to_acceptor) recorded.push_back(out);
  });
  ASSERT_EQ(recorded.size(), 2U);
  Handshake acceptor = Handshake::acceptor(duo.right, nonceOf(99), duo.policy);
  acceptor.feed(recorded[0]);
  acceptor.output();
  acceptor.feed(recorded[1]);
  EXPECT_EQ(acceptor.refusal(), RefusalCode::kKey);
  EXPECT_EQ(duo.policy.asked, 1) << "only by the first";
}

// Whoever sends a dialler's own words back to it, or uses it as an oracle, gets nowhere.
TEST(Handshake, ReflectedMessagesAreRefused) {
  const Identity self = identity("self", 1);
  Handshake dialler = Handshake::dialler(self, 2, "right", nonceOf(1), {1, 0, 0, 1});
  const std::vector<std::byte> hello = dialler.output();
  std::size_t fed = 0;
  while (dialler.wanted() > 0 && fed < hello.size()) {
    const std::size_t some = std::min(dialler.wanted(), hello.size() - fed);
    dialler.feed(std::span(hello).subspan(fed, some));
    fed += some;
  }
  EXPECT_EQ(dialler.status(), Status::kRefused);

  // The dialler's proof, sent back as the acceptor's.
  Duo duo;
  std::vector<std::byte> proof;
  const auto [left, right] = duo.run(1000, [&](bool to_acceptor, std::vector<std::byte>& out) {
    if (to_acceptor && out.size() == Proof::kBytes) proof = out;
    if (!to_acceptor && out.size() == Proof::kBytes) out = proof;
  });
  EXPECT_EQ(left.status(), Status::kRefused);
  EXPECT_EQ(left.refusal(), RefusalCode::kKey);
}

// Every byte of both hellos is under both proofs.
TEST(Handshake, NoByteCanBeChangedOnTheWay) {
  for (const bool direction : {true, false}) {
    for (std::size_t at = 0; at < Hello::kBytes + Proof::kBytes; ++at) {
      Duo duo;
      std::size_t seen = 0;
      const auto [dialler, acceptor] =
          duo.run(1000, [&](bool to_acceptor, std::vector<std::byte>& out) {
            if (to_acceptor != direction) return;
            if (at >= seen && at < seen + out.size()) out[at - seen] ^= std::byte{0x40};
            seen += out.size();
          });
      EXPECT_NE(dialler.status(), Status::kDone) << direction << " " << at;
      if (direction || at < Hello::kBytes) {
        EXPECT_NE(acceptor.status(), Status::kDone) << direction << " " << at;
      }
    }
  }
}

TEST(Handshake, TheAcceptorProvesNothingToOneWhoHasNotProvedItself) {
  Duo duo;
  duo.left.key = AuthKey::fromHex(std::string(64, 'b')).value();
  std::size_t from_acceptor = 0;
  duo.run(1000, [&](bool to_acceptor, std::vector<std::byte>& out) {
    if (!to_acceptor) from_acceptor += out.size();
  });
  EXPECT_EQ(from_acceptor, Hello::kBytes + Refusal::kBytes);
}

TEST(Handshake, GarbageEndsItAndIsNeverReadFurtherThanAHello) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Identity self = identity("right", 2);
  for (int round = 0; round < 2000; ++round) {
    Policy policy;
    Handshake acceptor = Handshake::acceptor(self, nonceOf(1), policy);
    std::size_t fed = 0;
    while (acceptor.wanted() > 0) {
      std::vector<std::byte> bytes(std::min<std::size_t>(acceptor.wanted(), 1 + random() % 100));
      for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
      fed += bytes.size();
      acceptor.feed(bytes);
    }
    EXPECT_EQ(fed, Hello::kBytes);
    EXPECT_EQ(acceptor.refusal(), RefusalCode::kMalformed);
  }
}

TEST(Hello, OneEncodingOnly) {
  Hello hello;
  hello.name = std::string(Hello::kMaxName, 'n');
  hello.rank = 7;
  hello.target_rank = 0;
  RefusalCode problem = RefusalCode::kNone;
  const HelloBytes good = encodeHello(hello);
  const std::optional<Hello> read = decodeHello(good, problem);
  ASSERT_TRUE(read);
  EXPECT_EQ(encodeHello(*read), good);

  const auto broken = [&](std::size_t at, std::uint8_t value) {
    HelloBytes bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return !decodeHello(bytes, problem) && problem == RefusalCode::kMalformed;
  };
  EXPECT_TRUE(broken(0, 'X'));
  EXPECT_TRUE(broken(10, 3));     // role
  EXPECT_TRUE(broken(11, 0));     // no name
  EXPECT_TRUE(broken(11, 129));   // longer than there is room
  EXPECT_TRUE(broken(11, 127));   // bytes behind the name
  EXPECT_TRUE(broken(15, 0x80));  // negative rank
  EXPECT_TRUE(broken(19, 0x80));
  EXPECT_TRUE(broken(20, 3));   // no wish for encryption
  EXPECT_TRUE(broken(21, 1));   // certificates for what is never encrypted
  EXPECT_TRUE(broken(22, 1));   // reserved
  EXPECT_TRUE(broken(130, 0));  // zero inside the name
}

}  // namespace
}  // namespace weft::transport
