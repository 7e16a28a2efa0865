// TlsStream: TLS 1.3 by OpenSSL over another stream. First the handshake, in steps; then bytes. A
// bit that flips on the way is a broken connection (EBADMSG), which the session makes again.
//
// Small buffers of one write share a record; large ones are encrypted where they are, and bytes
// that are read are decrypted once and copied to their places. Nothing is handed out before its
// record's tag was found right. A peer that sends new keys or tickets on end, which carry nothing,
// is broken off, too.
//
// The kernel could encrypt itself (kTLS, `modprobe tls`), but OpenSSL uses that only where it owns
// the socket, and here it does not.
//
// Threads: as Stream. An SSL object serves one thread at a time, so a lock that is a leaf is held
// while one record is made or opened, but not while bytes are sent. Ownership: shares `below`.
// Failure: errno, as Stream; of the handshake: problem().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/io/layered_stream.h"
#include "transport/tls/tls_bio.h"

struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

namespace weft::transport {

class TlsContext;

class TlsStream final : public LayeredStream {
 public:
  enum class Role : std::uint8_t { kDialler, kAcceptor };
  enum class Step : std::uint8_t { kDone, kAgain, kFailed };
  using PresharedKey = std::array<std::uint8_t, 32>;
  using ChannelBinding = std::array<std::uint8_t, 32>;
  static constexpr std::size_t kRecord = std::size_t{16} << 10;  // of plain bytes, at most
  static constexpr std::size_t kReadAtOnce = std::size_t{128} << 10;
  // AES-GCM is safe for some 2^24 records under one key (RFC 8446, 5.5): far sooner the writer
  // takes the next key.
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{16} << 30;

  // `key`: this connection's alone; used where the context is without certificates.
  TlsStream(std::shared_ptr<Stream> below, std::shared_ptr<const TlsContext> context, Role role,
            const PresharedKey& key, std::uint64_t bytes_per_key = kBytesPerKey);
  ~TlsStream() override;
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // --- the handshake; one thread ---

  // kAgain: call again when the stream can be read, or written if unsent(). Reads no byte behind
  // the handshake's last one.
  Step handshake();
  bool unsent() const noexcept { return bio_.unsent(); }
  // Why the handshake or the last failed read() failed: a dialler's handshake is done before the
  // acceptor has looked at its certificate. kAuthFailed: it is about certificates, and will not
  // pass; else kConnectFailed.
  const Error& problem() const noexcept { return problem_; }
  // Once it is done, with certificates: whether the peer's is for this name; else what names it
  // has.
  bool peerIs(const std::string& name) const;
  std::string peerNames() const;
  // Once it is done: what only the two ends of this very connection know (RFC 9266, tls-exporter).
  // Nothing: OpenSSL has no memory for it.
  std::optional<ChannelBinding> channelBinding() const;
  // From now on reads ahead: what was read until here ended with a record.
  void readAhead();

  // --- Stream ---

  // As CheckedStream's: a write that took less than all is followed by one of the same bytes.
  IoResult read(std::span<iovec> into) override;
  IoResult write(std::span<iovec> from, std::span<const int> fds) override;
  bool holdsBytes() const override { return holds_bytes_; }
  void wakeAt(std::size_t bytes) override;

 private:
  friend class TlsContext;
  struct Callbacks;  // what OpenSSL calls

  static void usePresharedKeys(ssl_ctx_st* context);
  ssl_session_st* presharedSession();

  void onControl();
  int receive(std::byte* into, std::size_t room, std::size_t& count);
  void seal(std::span<const iovec> from);
  bool sealOne(const std::byte* bytes, std::size_t count);
  void explain(int reason);

  TlsBio bio_;
  const std::shared_ptr<const TlsContext> context_;
  const Role role_;
  PresharedKey key_;
  const std::uint64_t bytes_per_key_;

  mutable std::mutex mutex_;  // guards ssl_ and what it does with bio_
  ssl_st* ssl_ = nullptr;
  // What has come: messages of TLS itself, behind the handshake, within so many bytes of data.
  std::uint32_t controls_ = 0;
  std::size_t bytes_since_ = 0;

  bool holds_bytes_ = false;  // after the last read; the reading thread's

  // The writing thread's.
  struct Sealed {
    std::size_t end = 0;      // in what bio_ has to send
    std::size_t payload = 0;  // bytes
  };
  std::deque<Sealed> sealed_;
  std::vector<std::byte> together_;  // small buffers of one record
  std::uint64_t bytes_with_key_ = 0;
  bool broken_ = false;  // a record could not be made

  Error problem_;
};

}  // namespace weft::transport
