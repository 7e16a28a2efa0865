// libFuzzer: TLS over bytes in memory that are changed on their way in any manner, within the
// handshake and behind it, in both directions. What is handed out is what was written; a change is
// an error, and never a byte.
#include "tests/transport/altered_pipe.h"
#include "transport/tls/tls_context.h"
#include "transport/tls/tls_stream.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using Step = TlsStream::Step;

struct Duo {
  AlteredPipe there;
  AlteredPipe back;
  std::shared_ptr<AlteredEnd> near = std::make_shared<AlteredEnd>(back, there);
  std::shared_ptr<AlteredEnd> far = std::make_shared<AlteredEnd>(there, back);
  static std::shared_ptr<const TlsContext> context() {
    static const std::shared_ptr<const TlsContext> one = TlsContext::withKey().value();
    return one;
  }
  // A new key comes soon.
  TlsStream dialler{near, context(), TlsStream::Role::kDialler, {}, 5000};
  TlsStream acceptor{far, context(), TlsStream::Role::kAcceptor, {}, 5000};
};

// False: it failed, or waits for bytes that do not come.
bool shakeHands(Duo& duo, FuzzInput& input, bool alter) {
  Step one = Step::kAgain;
  Step other = Step::kAgain;
  for (int i = 0; i < 16 && (one != Step::kDone || other != Step::kDone); ++i) {
    if (one == Step::kAgain) one = duo.dialler.handshake();
    if (alter && input.oneIn(4)) duo.there.alter(input);
    if (other == Step::kAgain) other = duo.acceptor.handshake();
    if (alter && input.oneIn(4)) duo.back.alter(input);
    if (one == Step::kFailed || other == Step::kFailed) break;
  }
  const bool altered = duo.there.altered || duo.back.altered;
  const bool done = one == Step::kDone && other == Step::kDone;
  require(done || altered);
  return done;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  Duo duo;
  if (!shakeHands(duo, input, input.oneIn(4))) return 0;
  duo.dialler.readAhead();
  duo.acceptor.readAhead();
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
