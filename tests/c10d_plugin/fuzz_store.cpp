// libFuzzer: what anybody may write into the Store, as a group's ranks read it: several texts in
// one, addresses, the group's secret, the epoch. Any text gives a value or an error, and what is
// read is written the same.
#include <string>

#include "c10d_plugin/store/all_gather.h"
#include "c10d_plugin/store/epoch.h"
#include "c10d_plugin/store/secret.h"
#include "tests/support/fuzz_input.h"
#include "transport/io/address.h"

namespace {

using namespace weft::collectives;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using weft::transport::Error;
using weft::transport::Result;

// Everything in it is another's.
class HostileStore final : public KeyValue {
 public:
  explicit HostileStore(FuzzInput& input) : input_(input) {}
  Error set(const std::string&, const std::string& value) override {
    own_ = value;
    return Error::ok();
  }
  Result<std::string> get(const std::string&, Deadline) override {
    if (input_.oneIn(16)) return Error(weft::transport::ErrorCode::kTimeout, "not there");
    if (input_.oneIn(4)) return own_;
    // Hexadecimal digits, as secrets and epochs are.
    std::string text = input_.text(input_.number());
    if (input_.oneIn(2)) {
      for (char& c : text)
        c = "0123456789abcdef"[static_cast<unsigned char>(c) % 16];
      text.resize(128, '0');
    }
    return text;
  }

 private:
  FuzzInput& input_;
  std::string own_;
};

void readTexts(const std::string& text) {
  if (const auto texts = splitTexts(text)) require(splitTexts(joinTexts(*texts)) == texts);
}

void readAddress(const std::string& text) {
  const auto address = weft::transport::parseAddress(text);
  if (!address.ok()) return require(!address.error().text().empty());
  const std::string written = weft::transport::formatAddress(address.value());
  const auto again = weft::transport::parseAddress(written);
  require(again.ok() && weft::transport::formatAddress(again.value()) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  HostileStore store(input);
  const Deadline past{};
  switch (input.below(4)) {
    case 0:
      readTexts(input.text(size));
      break;
    case 1:
      readAddress(input.text(size));
      break;
    case 2: {
      const auto secret = shareSecret(store, 1, past);
      if (secret.ok()) require(secret.value().key.valid() && secret.value().group_id.size() == 64);
      break;
    }
    default: {
      const auto epoch = agreeOnEpoch(store, 0, 2, past);
      if (epoch.ok()) require(epoch.value().size() <= 16);
    }
  }
  return 0;
}
