// TlsConnection: one end of a TLS 1.3 connection, by OpenSSL over another stream. First the
// handshake, in steps; then it opens and makes records, for a TlsStream.
//
// A peer that sends new keys or tickets on end, which carry nothing, is broken off.
//
// The kernel could encrypt itself (kTLS, `modprobe tls`), but OpenSSL uses that only where it owns
// the socket, and here it does not.
//
// Threads: the handshake: one; then one reads and one writes. An SSL object serves one thread at a
// time, so a lock that is a leaf is held while one record is made or opened, but not while bytes
// are sent. Ownership: shares `below`. Failure: problem(), and errno.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/io/stream.h"
#include "transport/tls/tls_bio.h"

struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

namespace weft::transport {

class TlsContext;

class TlsConnection {
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
  TlsConnection(std::shared_ptr<Stream> below, std::shared_ptr<const TlsContext> context, Role role,
                const PresharedKey& key, std::uint64_t bytes_per_key = kBytesPerKey);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  // --- the handshake; one thread ---

  // kAgain: call again when the stream can be read, or written if unsent(). Reads no byte behind
  // the handshake's last one.
  Step handshake();
  bool unsent() const noexcept { return bio_.unsent(); }
  // Why the handshake or the last failed read() failed: a dialler's handshake is done before the
  // acceptor has looked at its certificate. kAuthFailed: it is about certificates, and will not
  // pass; else kConnectFailed.
  const Error& problem() const noexcept { return problem_; }
  // Once it is done, with certificates: the names that the peer's is for.
  std::vector<std::string> peerNames() const;
  // Once it is done: what only the two ends of this very connection know (RFC 9266, tls-exporter).
  // Nothing: OpenSSL has no memory for it.
  std::optional<ChannelBinding> channelBinding() const;
  // From now on reads ahead: what was read until here ended with a record.
  void readAhead();

  // --- records; once it is done ---

  // The reading thread; a turn of reads begins with bio().beginRead(). `count` bytes of at most one
  // record are in `into`, or it returns errno. EAGAIN: no record is whole. ENODATA: the stream has
  // ended. EBADMSG: bytes are not as they were written. EPROTO: the peer broke the connection off,
  // or what it sends is of no use.
  int read(std::byte* into, std::size_t room, std::size_t& count);
  // The writing thread. Makes one record, of at most kRecord bytes, which bio() has to send. False:
  // it cannot be made, nor any other.
  bool write(const std::byte* bytes, std::size_t count);

  TlsBio& bio() noexcept { return bio_; }
  const std::shared_ptr<Stream>& below() const noexcept { return below_; }

 private:
  friend class TlsContext;
  struct Callbacks;  // what OpenSSL calls

  static void usePresharedKeys(ssl_ctx_st* context);
  ssl_session_st* presharedSession();

  void onControl();
  void explain(int reason);

  const std::shared_ptr<Stream> below_;
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

  std::uint64_t bytes_with_key_ = 0;  // the writing thread's
  Error problem_;
};

}  // namespace weft::transport
