// What OpenSSL says of its failures. Any thread: each has an error queue of its own.
#pragma once

#include <string>

namespace weft::transport {

// The last failure, for people. Empties the calling thread's error queue.
std::string takeOpensslError();

// Whether this reason of an error is about a certificate, here or (an alert) at the other end.
bool aboutCertificate(int reason) noexcept;

}  // namespace weft::transport
