// What the environment says of encryption: WEFT_ENCRYPTION and WEFT_TLS_CERT, _KEY and _CA.
//
// Threads: any. Failure: an Error that names the variable.
#pragma once

#include "transport/auth/encryption.h"
#include "transport/base/error.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {

struct EncryptionSettings {
  Encryption encryption = Encryption::kOff;
  TlsFiles certificates;  // none where it is off
};

// `secret_key`: the group's key comes from a file, so that it is worth encrypting with.
Result<EncryptionSettings> encryptionFromEnvironment(bool secret_key);

// Warns, once in a process, that a group that spans hosts has its key in the Store, which whoever
// reaches the Store can read. Says nothing if there are certificates.
void warnOfKeyInStore();

}  // namespace weft::transport
