// Anything a stranger may say: to the parsers of the fixed-size messages, and to both sides of a
// handshake. The first byte chooses; the rest is what arrives.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "transport/auth/handshake.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)

void require(bool condition) {
  if (!condition) std::abort();
}

class Policy : public AcceptPolicy {
 public:
  RefusalCode admit(const Hello&, const SessionClaim&, SessionClaim& ours) override {
    ours = {2, 0, 0, 1};
    return RefusalCode::kNone;
  }
};

const Identity& self() {
  static const Identity identity = [] {
    Identity made;
    made.name = "worker0";
    made.rank = 0;
    made.group = sha256(std::string("group"));
    made.key = AuthKey::fromHex(std::string(64, 'a')).value();
    return made;
  }();
  return identity;
}

void converse(Handshake handshake, std::span<const std::byte> input) {
  handshake.output();
  while (handshake.wanted() > 0 && !input.empty()) {
    require(handshake.wanted() <= Hello::kBytes);
    const std::size_t some = std::min(handshake.wanted(), input.size());
    handshake.feed(input.first(some));
    input = input.subspan(some);
    handshake.output();
  }
  // Nobody without the key gets through, whatever he says.
  require(handshake.status() != Handshake::Status::kDone);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  static Policy policy;
  const EncryptionTerms terms{
      (data[0] & 0x80) != 0 ? EncryptionTerms::Wish::kRequired : EncryptionTerms::Wish::kNever,
      false};
  switch (data[0] % 3) {
    case 0:
      converse(Handshake::acceptor(self(), Nonce{}, policy, terms), input);
      break;
    case 1:
      converse(Handshake::dialler(self(), 1, "worker1", Nonce{}, {1, 0, 0, 1}, terms), input);
      break;
    default:
      if (input.size() >= Hello::kBytes) {
        const std::span<const std::byte, Hello::kBytes> bytes(input.data(), Hello::kBytes);
        RefusalCode problem = RefusalCode::kNone;
        const std::optional<Hello> hello = decodeHello(bytes, problem);
        require(hello.has_value() == (problem == RefusalCode::kNone));
        // One encoding per hello: what is read is written the same.
        if (hello) require(std::equal(bytes.begin(), bytes.end(), encodeHello(*hello).begin()));
      }
      if (input.size() >= Refusal::kBytes) {
        const std::span<const std::byte, Refusal::kBytes> bytes(input.data(), Refusal::kBytes);
        if (isRefusal(bytes)) require(decodeRefusal(bytes).code != RefusalCode::kNone);
      }
      if (input.size() >= Proof::kBytes) {
        const std::span<const std::byte, Proof::kBytes> bytes(input.data(), Proof::kBytes);
        const std::optional<Proof> proof = decodeProof(bytes);
        if (proof) require(std::equal(bytes.begin(), bytes.end(), encodeProof(*proof).begin()));
      }
  }
  return 0;
}
