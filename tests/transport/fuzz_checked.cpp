// libFuzzer: records with checksums, written and read in any pieces, and changed on their way in
// any manner. What is handed out is what was written; a change is an error, and never a byte.
#include "tests/transport/altered_pipe.h"
#include "transport/checksum/checked_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::transport;  // NOLINT(google-build-using-namespace)
  weft::testing::FuzzInput input(data, size);
  AlteredPipe there;
  AlteredPipe back;
  const auto near = std::make_shared<AlteredEnd>(back, there);
  const auto far = std::make_shared<AlteredEnd>(there, back);
  CheckedStream writer(near, {1, 2});
  CheckedStream reader(far, {2, 1});
  AlteredConversation talk(writer, reader, there, back);
  for (int i = 0; i < 48 && !input.empty() && !talk.over(); ++i) {
    switch (input.below(8)) {
      case 0:
        talk.add(input.number());
        break;
      case 1:
        talk.add(input.number<std::uint16_t>() / 2);  // large ones have records of their own
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
        near->at_once = input.number<std::uint16_t>();
        break;
      case 6:
        far->at_once = input.number<std::uint16_t>();
        break;
      default:
        there.alter(input);
    }
  }
  near->at_once = far->at_once = SIZE_MAX;
  talk.finish();
  return 0;
}
