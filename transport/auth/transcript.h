// Transcript: what the two ends of a connection have said to each other in their handshake, and
// what both derive from it: proofs and the key of TLS, which take the group's key, and the seeds of
// checksums.
//
// Everything covers both hellos whole. A proof also covers what its side claims of the session, and
// the channel binding of the TLS connection in which it is given.
//
// Threads: one at a time.
#pragma once

#include "transport/auth/auth_key.h"
#include "transport/auth/hello.h"
#include "transport/checksum/checked_stream.h"

namespace weft::transport {

struct Transcript {
  HelloBytes dialler_hello{};
  HelloBytes acceptor_hello{};
  Digest channel_binding{};  // zeros until TLS is there

  // What proves that the end of this role holds the key.
  Digest mac(const AuthKey& key, HelloRole role, const SessionClaim& claim) const;
  // No other connection has it.
  Digest tlsKey(const AuthKey& key) const;
  // Of the end of this role. They differ by direction.
  CheckedStream::Seeds checksumSeeds(HelloRole role) const noexcept;
};

}  // namespace weft::transport
