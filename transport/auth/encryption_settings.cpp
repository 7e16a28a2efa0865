#include "transport/auth/encryption_settings.h"

#include <atomic>
#include <string>

#include "transport/base/environment.h"
#include "transport/base/log.h"

namespace weft::transport {
namespace {

TlsFiles filesFromEnvironment() {
  return {environment::value(environment::kTlsCert), environment::value(environment::kTlsKey),
          environment::value(environment::kTlsCa)};
}

}  // namespace

Result<EncryptionSettings> encryptionFromEnvironment(bool secret_key) {
  const TlsFiles files = filesFromEnvironment();
  if (files.any() && !files.all()) return certificateFilesMissing();
  const std::string choice = environment::value(environment::kEncryption);
  if (choice == "off") return EncryptionSettings{};
  if (choice == "on") return EncryptionSettings{Encryption::kOn, files};
  if (!secret_key && !files.any()) return EncryptionSettings{};
  return EncryptionSettings{Encryption::kBetweenHosts, files};
}

void warnOfKeyInStore() {
  static std::atomic<bool> said{false};
  const bool by_certificates =
      filesFromEnvironment().any() && environment::value(environment::kEncryption) != "off";
  if (by_certificates || said.exchange(true)) return;
  log(LogLevel::kWarning,
      "this group spans hosts, and its key is in the Store, where whoever reaches the Store can "
      "read it; give all workers a key file (WEFT_AUTH_KEY_FILE), which also encrypts what goes "
      "between hosts, or keep the network private");
}

}  // namespace weft::transport
