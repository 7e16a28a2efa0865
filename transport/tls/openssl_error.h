// What OpenSSL says of its failures. Any thread: each has an error queue of its own.
#pragma once

#include <string>

namespace weft::transport {

// The last failure, for people. Empties the calling thread's error queue.
std::string takeOpensslError();

}  // namespace weft::transport
