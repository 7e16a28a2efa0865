#include "transport/environment_options.h"

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

Error applyEnvironment(EndpointOptions& options, bool secret_key) {
  options.unix_socket = environment::value(environment::kUnixSocket) != "0";
  options.accept_other_users = environment::value(environment::kOtherUsers) == "1";
  options.arena.enabled = environment::value(environment::kSharedMemory) != "0";
  options.bulk.enabled = environment::value(environment::kTcpConnections) != "1";
  options.encryption = Encryption::kOff;
  options.certificates = {};
  const TlsFiles files = filesFromEnvironment();
  if (files.any() && !files.all()) return certificateFilesMissing();
  const std::string choice = environment::value(environment::kEncryption);
  const bool wanted = choice == "on" || secret_key || files.any();
  if (choice == "off" || !wanted) return Error::ok();
  options.encryption = choice == "on" ? Encryption::kOn : Encryption::kBetweenHosts;
  options.certificates = files;
  return Error::ok();
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
