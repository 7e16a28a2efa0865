// Handshake: how two endpoints prove to each other that they hold the group's key, before a frame
// is read. A state machine of bytes in and bytes out, without any IO.
//
//   dialler  -> hello                                    256 bytes
//   acceptor -> hello, or a refusal                      256 or 16
//   dialler  -> proof = HMAC-SHA-256(key, "…dialler…" hello1 hello2 claim1), claim1   72
//   acceptor -> proof = HMAC-SHA-256(key, "…acceptor…" hello1 hello2 claim2), claim2, or a refusal
//                                                                                   72 or 16
//
// When the hellos agree on encryption (encryption.h), TLS begins behind the dialler's proof: the
// acceptor finds that right, and says so (StartTls, 16 bytes). Inside of TLS the dialler proves
// itself once more, and then the acceptor. With certificates the acceptor checks the dialler's name
// there too, before it admits the dialler.
//
// Both proofs cover both hellos whole, so names, ranks, group, nonces, roles and version are
// all bound; and each covers what its side claims of the session (SessionClaim). Those inside of
// TLS cover its channel binding, so that nobody can end TLS in the middle and relay them. The
// acceptor proves nothing before the dialler has.
//
// Threads: one at a time. Failure: Status, and refusal().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/auth/auth_key.h"
#include "transport/auth/hello.h"
#include "transport/auth/transcript.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {

// Who this endpoint is.
struct Identity {
  std::string name;
  std::int32_t rank = -1;
  std::uint64_t incarnation = 0;
  Digest group{};
  AuthKey key;
  // Not null: may encrypt.
  std::shared_ptr<const TlsContext> tls = nullptr;
};

// What an acceptor asks the endpoint. Asked at most once per handshake.
class AcceptPolicy {
 public:
  virtual ~AcceptPolicy() = default;
  // The dialler has proved that it holds the key, and what it claims. kNone admits it, and fills in
  // `ours`.
  virtual RefusalCode admit(const Hello& dialler, const SessionClaim& theirs,
                            SessionClaim& ours) = 0;
};

class Handshake {
 public:
  enum class Status : std::uint8_t {
    kRunning,
    kDone,           // both have proved themselves; send output(), then frames may flow
    kRefusedByPeer,  // refusal() says why
    kRefused,        // by this side; send output(), then close
  };

  static Handshake dialler(const Identity& self, std::int32_t target_rank,
                           const std::string& target_name, const Nonce& nonce,
                           const SessionClaim& claim, const EncryptionTerms& terms = {});
  static Handshake acceptor(const Identity& self, const Nonce& nonce, AcceptPolicy& policy,
                            const EncryptionTerms& terms = {});

  Status status() const noexcept { return status_; }
  RefusalCode refusal() const noexcept { return refusal_; }
  std::uint16_t peerVersion() const noexcept { return peer_version_; }
  // The peer's hello was right: a stranger to the group could not have made it. This proves nothing
  // yet.
  bool named() const noexcept { return step_ != Step::kAwaitHello; }
  const Hello& peer() const noexcept { return peer_; }                    // proved only when kDone
  const SessionClaim& peerClaim() const noexcept { return peer_claim_; }  // likewise
  // When kDone.
  CheckedStream::Seeds checksumSeeds() const noexcept { return transcript_.checksumSeeds(role_); }

  // Send output(), then make this connection TLS, with this key, which no other connection has;
  // then tell secured().
  bool wantsTls() const noexcept { return status_ == Status::kRunning && step_ == Step::kAwaitTls; }
  HelloRole role() const noexcept { return role_; }
  const Identity& self() const noexcept { return *self_; }
  Digest tlsKey() const { return transcript_.tlsKey(self_->key); }
  // What only the two ends of the TLS connection know; or why the peer is not who its hello says.
  void secured(const Digest& channel_binding);
  void notSecured(RefusalCode problem);

  // How many bytes it wants next; 0 when it is no longer running, or wants TLS. Never more than the
  // rest of a fixed-size message.
  std::size_t wanted() const noexcept;
  // At most wanted() bytes.
  void feed(std::span<const std::byte> bytes);
  // Bytes to send now; taken.
  std::vector<std::byte> output();

 private:
  enum class Step : std::uint8_t {
    kAwaitHello,
    kAwaitProof,
    kAwaitStartTls,
    kAwaitTls,
    kAwaitBoundProof
  };

  Handshake(const Identity& self, HelloRole role, AcceptPolicy* policy, const Nonce& nonce,
            const EncryptionTerms& terms);
  void onHello();
  void onProof();
  bool isForged(RefusalCode code) const noexcept;
  void onStartTls();
  RefusalCode agreeOnEncryption();
  void admitDialler();
  HelloBytes helloTo(std::int32_t rank, const std::string& name) const;
  void prove();
  void refuse(RefusalCode code);
  void emit(std::span<const std::byte> bytes);

  const Identity* self_;
  HelloRole role_;
  AcceptPolicy* policy_;
  Step step_ = Step::kAwaitHello;
  Status status_ = Status::kRunning;
  RefusalCode refusal_ = RefusalCode::kNone;
  std::uint16_t peer_version_ = 0;

  std::int32_t target_rank_ = -1;
  std::string target_name_text_;
  Nonce nonce_{};
  EncryptionTerms terms_;
  bool encrypted_ = false;
  Hello peer_;
  SessionClaim claim_;
  SessionClaim peer_claim_;
  Transcript transcript_;

  std::array<std::byte, Hello::kBytes> input_{};
  std::size_t filled_ = 0;
  std::vector<std::byte> output_;
};

}  // namespace weft::transport
