// TlsStream: the bytes that go over a TLS connection whose handshake is done. A bit that flips on
// the way is a broken connection (EBADMSG), which the session makes again.
//
// Small buffers of one write share a record; large ones are encrypted where they are, and bytes
// that are read are decrypted once and copied to their places. Nothing is handed out before its
// record's tag was found right.
//
// Threads, ownership and failure are Stream's; why a read failed: TlsConnection::problem().
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/io/layered_stream.h"
#include "transport/io/sealed_pieces.h"
#include "transport/tls/tls_connection.h"

namespace weft::transport {

class TlsStream final : public LayeredStream {
 public:
  explicit TlsStream(std::shared_ptr<TlsConnection> connection);

  // As CheckedStream's: a write that took less than all is followed by one of the same bytes.
  IoResult read(std::span<iovec> into) override;
  IoResult write(std::span<iovec> from, std::span<const int> fds) override;
  bool holdsBytes() const override { return holds_bytes_; }
  void wakeAt(std::size_t bytes) override;

 private:
  void seal(std::span<const iovec> from);
  bool sealOne(const std::byte* bytes, std::size_t count);

  const std::shared_ptr<TlsConnection> connection_;
  bool holds_bytes_ = false;  // after the last read; the reading thread's

  // The writing thread's.
  SealedPieces records_;             // in the connection's output
  std::vector<std::byte> together_;  // small buffers of one record
  bool broken_ = false;              // a record could not be made
};

}  // namespace weft::transport
