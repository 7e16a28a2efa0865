// What OpenSSL says of its last failure, for people. Empties the calling thread's error queue.
#pragma once

#include <string>

namespace weft::transport {

std::string takeOpensslError();

}  // namespace weft::transport
