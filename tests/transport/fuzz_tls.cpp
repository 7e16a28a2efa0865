// libFuzzer: TLS over bytes in memory that are changed on their way in any manner, within the
// handshake and behind it, in both directions, with keys and with certificates. What is handed out
// is what was written; a change is an error, and never a byte. And a peer that says more of TLS
// itself than a TlsStream does: it is heard up to a bound.
#include <memory>

#include "tests/transport/altered_pipe.h"
#include "tests/transport/certificates.h"
#include "tests/transport/raw_tls.h"
#include "transport/tls/tls_context.h"
#include "transport/tls/tls_stream.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using Step = TlsConnection::Step;

std::shared_ptr<const TlsContext> withKey() {
  static const std::shared_ptr<const TlsContext> one = TlsContext::withKey().value();
  return one;
}

std::shared_ptr<const TlsContext> withCertificates() {
  static const std::shared_ptr<const TlsContext> one = [] {
    Certificates certificates;
    const Certificates::Authority authority = Certificates::authority("CA");
    return TlsContext::withCertificates(certificates.worker(authority, "worker1")).value();
  }();
  return one;
}

TlsConnection::PresharedKey keyOf(std::uint8_t number) {
  TlsConnection::PresharedKey key{};
  for (std::uint8_t& byte : key)
    byte = number = static_cast<std::uint8_t>(number * 5 + 3);
  return key;
}

// How the two begin. Where their keys differ they never meet.
struct Beginning {
  bool certificates;
  std::uint8_t near_key;
  std::uint8_t far_key;
  bool mayMeet() const { return certificates || near_key == far_key; }
};

Beginning beginningOf(FuzzInput& input) {
  const std::uint8_t near_key = input.number();
  return {near_key % 16 == 0, near_key, input.oneIn(16) ? input.number() : near_key};
}

struct Duo {
  explicit Duo(const Beginning& how)
      : dials(begin(near, how, TlsConnection::Role::kDialler, how.near_key)),
        accepts(begin(far, how, TlsConnection::Role::kAcceptor, how.far_key)) {}

  // A new key comes soon.
  static std::shared_ptr<TlsConnection> begin(std::shared_ptr<Stream> over, const Beginning& how,
                                              TlsConnection::Role role, std::uint8_t key) {
    return std::make_shared<TlsConnection>(
        std::move(over), how.certificates ? withCertificates() : withKey(), role, keyOf(key), 5000);
  }

  AlteredPipe there;
  AlteredPipe back;
  std::shared_ptr<AlteredEnd> near = std::make_shared<AlteredEnd>(back, there);
  std::shared_ptr<AlteredEnd> far = std::make_shared<AlteredEnd>(there, back);
  std::shared_ptr<TlsConnection> dials;
  std::shared_ptr<TlsConnection> accepts;
  TlsStream dialler{dials};
  TlsStream acceptor{accepts};
};

// False: it failed, or waits for bytes that do not come.
bool shakeHands(Duo& duo, FuzzInput& input, const Beginning& how) {
  const bool alter = input.oneIn(4);
  Step one = Step::kAgain;
  Step other = Step::kAgain;
  for (int i = 0; i < 16 && (one != Step::kDone || other != Step::kDone); ++i) {
    if (one == Step::kAgain) one = duo.dials->handshake();
    if (alter && input.oneIn(4)) duo.there.alter(input);
    if (other == Step::kAgain) other = duo.accepts->handshake();
    if (alter && input.oneIn(4)) duo.back.alter(input);
    if (one == Step::kFailed || other == Step::kFailed) break;
  }
  const bool altered = duo.there.altered || duo.back.altered;
  const bool done = one == Step::kDone && other == Step::kDone;
  require(done ? how.mayMeet() : altered || !how.mayMeet());
  return done;
}

// A member that takes key after key.
void hearKeys(FuzzInput& input) {
  AlteredPipe there;
  AlteredPipe back;
  RawTls raw(std::make_shared<AlteredEnd>(back, there), *withCertificates(), true);
  const auto accepts = std::make_shared<TlsConnection>(
      std::make_shared<AlteredEnd>(there, back), withCertificates(), TlsConnection::Role::kAcceptor,
      TlsConnection::PresharedKey{});
  Step step = Step::kAgain;
  for (int i = 0; i < 8 && step == Step::kAgain; ++i) {
    raw.handshake();
    step = accepts->handshake();
  }
  require(step == Step::kDone);
  accepts->readAhead();
  TlsStream acceptor(accepts);
  std::size_t keys = 0;
  std::size_t written = 0;
  std::size_t read = 0;
  int error = 0;
  std::vector<std::byte> bytes(4096);
  for (int i = 0; i < 32 && !input.empty(); ++i) {
    const std::size_t some = input.number() + 1U;
    if (input.oneIn(2)) {
      for (std::size_t key = 0; key < some % 16; ++key, ++keys)
        raw.takeNextKey();
    } else {
      raw.write(std::span(bytes).first(some));
      written += some;
    }
    iovec into{bytes.data(), bytes.size()};
    const IoResult result = acceptor.read(std::span(&into, 1));
    require(error == 0 || (result.count == 0 && result.error == error));
    if (result.error != EAGAIN) error = result.error;
    read += result.count;
    require(error == (keys > 32 ? EPROTO : 0));
    require(error != 0 || read == written);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  if (input.oneIn(32)) {
    hearKeys(input);
    return 0;
  }
  const Beginning how = beginningOf(input);
  Duo duo(how);
  if (!shakeHands(duo, input, how)) return 0;
  duo.dials->readAhead();
  duo.accepts->readAhead();
  AlteredConversation talks[] = {{duo.dialler, duo.acceptor, duo.there, duo.back},
                                 {duo.acceptor, duo.dialler, duo.back, duo.there}};
  for (int i = 0; i < 48 && !input.empty(); ++i) {
    const std::size_t which = input.below(2);
    AlteredConversation& talk = talks[which];
    switch (input.below(8)) {
      case 0:
        talk.add(input.number());
        break;
      case 1:
        talk.add(input.number<std::uint16_t>() / 2);
        break;
      case 2:
        talk.write();
        break;
      case 3:
        talk.read(input.number() + 1U);
        break;
      case 4:
        talk.read(input.number<std::uint16_t>() + 1U);
        break;
      case 5:
        duo.near->at_once = input.number<std::uint16_t>();
        break;
      case 6:
        duo.far->at_once = input.number<std::uint16_t>();
        break;
      default:
        (which == 0 ? duo.there : duo.back).alter(input);
    }
  }
  duo.near->at_once = duo.far->at_once = SIZE_MAX;
  for (AlteredConversation& talk : talks)
    talk.finish();
  return 0;
}
