#include "transport/auth/handshake.h"

#include <algorithm>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {

Handshake::Handshake(const Identity& self, HelloRole role, AcceptPolicy* policy, const Nonce& nonce,
                     const EncryptionTerms& terms)
    : self_(&self), role_(role), policy_(policy), nonce_(nonce), terms_(terms) {}

Handshake Handshake::dialler(const Identity& self, std::int32_t target_rank,
                             const std::string& target_name, const Nonce& nonce,
                             const SessionClaim& claim, const EncryptionTerms& terms) {
  Handshake made(self, HelloRole::kDialler, nullptr, nonce, terms);
  made.claim_ = claim;
  made.target_rank_ = target_rank;
  made.target_name_text_ = target_name;
  made.transcript_.dialler_hello = made.helloTo(target_rank, target_name);
  made.emit(made.transcript_.dialler_hello);
  return made;
}

HelloBytes Handshake::helloTo(std::int32_t rank, const std::string& name) const {
  Hello hello;
  hello.role = role_;
  hello.name = self_->name;
  hello.rank = self_->rank;
  hello.target_rank = rank;
  hello.encryption = terms_;
  hello.incarnation = self_->incarnation;
  hello.group = self_->group;
  hello.nonce = nonce_;
  hello.target_name = sha256(name);
  return encodeHello(hello);
}

Handshake Handshake::acceptor(const Identity& self, const Nonce& nonce, AcceptPolicy& policy,
                              const EncryptionTerms& terms) {
  return {self, HelloRole::kAcceptor, &policy, nonce, terms};
}

std::size_t Handshake::wanted() const noexcept {
  if (status_ != Status::kRunning || step_ == Step::kAwaitTls) return 0;
  std::size_t whole = step_ == Step::kAwaitHello ? Hello::kBytes : Proof::kBytes;
  if (step_ == Step::kAwaitStartTls) whole = StartTls::kBytes;
  // An answer may be a refusal: only its length is read until that is known.
  if (role_ == HelloRole::kDialler && filled_ < Refusal::kBytes) whole = Refusal::kBytes;
  return whole - filled_;
}

// What ends a session is said within TLS, once the two have agreed on it: in plain words it is of
// somebody on the way.
bool Handshake::isForged(RefusalCode code) const noexcept {
  return step_ == Step::kAwaitStartTls &&
         (code == RefusalCode::kDuplicate || code == RefusalCode::kStale ||
          code == RefusalCode::kDisplaced || code == RefusalCode::kCertificateName);
}

void Handshake::feed(std::span<const std::byte> bytes) {
  WEFT_CHECK(bytes.size() <= wanted(), "no more than what was wanted");
  std::copy(bytes.begin(), bytes.end(), input_.begin() + static_cast<std::ptrdiff_t>(filled_));
  filled_ += bytes.size();
  if (role_ == HelloRole::kDialler && filled_ == Refusal::kBytes) {
    const std::span<const std::byte, Refusal::kBytes> head(input_.data(), Refusal::kBytes);
    if (isRefusal(head)) {
      const Refusal refusal = decodeRefusal(head);
      peer_version_ = refusal.version;
      refusal_ = isForged(refusal.code) ? RefusalCode::kMalformed : refusal.code;
      status_ = Status::kRefusedByPeer;
      return;
    }
  }
  if (step_ == Step::kAwaitHello && filled_ == Hello::kBytes) {
    filled_ = 0;
    onHello();
  } else if ((step_ == Step::kAwaitProof || step_ == Step::kAwaitBoundProof) &&
             filled_ == Proof::kBytes) {
    filled_ = 0;
    onProof();
  } else if (step_ == Step::kAwaitStartTls && filled_ == StartTls::kBytes) {
    filled_ = 0;
    onStartTls();
  }
}

std::vector<std::byte> Handshake::output() { return std::exchange(output_, {}); }

void Handshake::onHello() {
  RefusalCode problem = RefusalCode::kNone;
  std::optional<Hello> hello = decodeHello(input_, problem);
  if (!hello) return refuse(problem);
  peer_version_ = hello->version;
  const HelloRole other = role_ == HelloRole::kDialler ? HelloRole::kAcceptor : HelloRole::kDialler;
  if (hello->role != other) return refuse(RefusalCode::kMalformed);
  peer_ = std::move(*hello);
  if (peer_.group != self_->group) return refuse(RefusalCode::kGroup);
  if (peer_.target_rank != self_->rank || peer_.target_name != sha256(self_->name) ||
      peer_.rank == self_->rank) {
    return refuse(RefusalCode::kIdentity);
  }

  if (role_ == HelloRole::kDialler) {
    if (peer_.rank != target_rank_ || peer_.name != target_name_text_)
      return refuse(RefusalCode::kIdentity);
    if (const RefusalCode code = agreeOnEncryption(); code != RefusalCode::kNone)
      return refuse(code);
    transcript_.acceptor_hello = input_;
    step_ = encrypted_ ? Step::kAwaitStartTls : Step::kAwaitProof;
    prove();
    return;
  }
  if (const RefusalCode code = agreeOnEncryption(); code != RefusalCode::kNone) return refuse(code);
  transcript_.dialler_hello = input_;
  transcript_.acceptor_hello = helloTo(peer_.rank, peer_.name);
  step_ = Step::kAwaitProof;
  emit(transcript_.acceptor_hello);
}

void Handshake::onProof() {
  const std::optional<Proof> given =
      decodeProof(std::span<const std::byte, Proof::kBytes>(input_.data(), Proof::kBytes));
  if (!given) return refuse(RefusalCode::kMalformed);
  const HelloRole other = role_ == HelloRole::kDialler ? HelloRole::kAcceptor : HelloRole::kDialler;
  if (!sameDigest(given->mac, transcript_.mac(self_->key, other, given->claim)))
    return refuse(RefusalCode::kKey);
  peer_claim_ = given->claim;
  if (role_ == HelloRole::kAcceptor && encrypted_ && step_ == Step::kAwaitProof) {
    step_ = Step::kAwaitTls;
    return emit(encodeStartTls());
  }
  if (role_ == HelloRole::kAcceptor) return admitDialler();
  status_ = Status::kDone;
}

void Handshake::admitDialler() {
  const RefusalCode code = policy_->admit(peer_, peer_claim_, claim_);
  if (code != RefusalCode::kNone) return refuse(code);
  prove();
  status_ = Status::kDone;
}

RefusalCode Handshake::agreeOnEncryption() {
  const EncryptionVerdict verdict = agree(terms_, peer_.encryption);
  encrypted_ = verdict == EncryptionVerdict::kEncrypted;
  if (verdict == EncryptionVerdict::kRefusedByOne) return RefusalCode::kEncryption;
  if (verdict == EncryptionVerdict::kCertificateOfOne) return RefusalCode::kCredentials;
  return RefusalCode::kNone;
}

void Handshake::onStartTls() {
  const std::span<const std::byte, StartTls::kBytes> bytes(input_.data(), StartTls::kBytes);
  if (!isStartTls(bytes)) return refuse(RefusalCode::kMalformed);
  step_ = Step::kAwaitTls;
}

void Handshake::secured(const Digest& channel_binding) {
  WEFT_CHECK(wantsTls(), "TLS only where it is wanted");
  transcript_.channel_binding = channel_binding;
  step_ = Step::kAwaitBoundProof;
  if (role_ == HelloRole::kDialler) prove();
}

void Handshake::notSecured(RefusalCode problem) {
  WEFT_CHECK(wantsTls(), "TLS only where it is wanted");
  refuse(problem);
}

void Handshake::prove() { emit(encodeProof({transcript_.mac(self_->key, role_, claim_), claim_})); }

void Handshake::refuse(RefusalCode code) {
  refusal_ = code;
  status_ = Status::kRefused;
  // Only an acceptor tells why; a dialler just closes the connection.
  if (role_ == HelloRole::kAcceptor) emit(encodeRefusal({kProtocolVersion, code}));
}

void Handshake::emit(std::span<const std::byte> bytes) {
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

}  // namespace weft::transport
