// What the environment says of an endpoint: which ways of sending it may use, and encryption
// (WEFT_ENCRYPTION and WEFT_TLS_CERT, _KEY and _CA).
//
// Threads: any. Failure: an Error that names the variable.
#pragma once

#include "transport/options.h"

namespace weft::transport {

// Sets these of `options`; the others stay. `secret_key`: the group's key comes from a file, so
// that it is worth encrypting with.
Error applyEnvironment(EndpointOptions& options, bool secret_key);

// Warns, once in a process, that a group that spans hosts has its key in the Store, which whoever
// reaches the Store can read. Says nothing if there are certificates.
void warnOfKeyInStore();

}  // namespace weft::transport
