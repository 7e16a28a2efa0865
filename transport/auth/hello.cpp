#include "transport/auth/hello.h"

#include <algorithm>
#include <cstring>

#include "transport/base/bytes.h"

namespace weft::transport {
namespace {

constexpr char kHelloMagic[] = "WEFTHELO";
constexpr char kRefusalMagic[] = "WEFTNOPE";
constexpr char kProofMagic[] = "WEFTPROF";
constexpr char kStartTlsMagic[] = "WEFTOTLS";
constexpr std::size_t kMagicBytes = 8;

// Offsets in a hello.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kRoleAt = 10;
constexpr std::size_t kNameLengthAt = 11;
constexpr std::size_t kRankAt = 12;
constexpr std::size_t kTargetRankAt = 16;
constexpr std::size_t kEncryptionAt = 20;
constexpr std::size_t kCertificatesAt = 21;
constexpr std::size_t kReservedAt = 22;
constexpr std::size_t kIncarnationAt = 24;
constexpr std::size_t kGroupAt = 32;
constexpr std::size_t kNonceAt = 64;
constexpr std::size_t kTargetNameAt = 96;
constexpr std::size_t kNameAt = 128;
static_assert(kNameAt + Hello::kMaxName == Hello::kBytes);

constexpr std::size_t kClaimAt = kMagicBytes + 32;  // in a proof
static_assert(kClaimAt + SessionClaim::kBytes == Proof::kBytes);

bool hasMagic(const std::byte* bytes, const char* magic) noexcept {
  return std::memcmp(bytes, magic, kMagicBytes) == 0;
}

}  // namespace

HelloBytes encodeHello(const Hello& hello) {
  HelloBytes bytes{};
  std::byte* out = bytes.data();
  std::memcpy(out, kHelloMagic, kMagicBytes);
  storeLittle<std::uint16_t>(out + kVersionAt, hello.version);
  storeLittle<std::uint8_t>(out + kRoleAt, static_cast<std::uint8_t>(hello.role));
  const std::size_t length = std::min(hello.name.size(), Hello::kMaxName);
  storeLittle<std::uint8_t>(out + kNameLengthAt, static_cast<std::uint8_t>(length));
  storeLittle<std::uint32_t>(out + kRankAt, static_cast<std::uint32_t>(hello.rank));
  storeLittle<std::uint32_t>(out + kTargetRankAt, static_cast<std::uint32_t>(hello.target_rank));
  storeLittle<std::uint8_t>(out + kEncryptionAt, static_cast<std::uint8_t>(hello.encryption.wish));
  storeLittle<std::uint8_t>(out + kCertificatesAt, hello.encryption.certificates ? 1 : 0);
  storeLittle<std::uint64_t>(out + kIncarnationAt, hello.incarnation);
  std::memcpy(out + kGroupAt, hello.group.data(), hello.group.size());
  std::memcpy(out + kNonceAt, hello.nonce.data(), hello.nonce.size());
  std::memcpy(out + kTargetNameAt, hello.target_name.data(), hello.target_name.size());
  std::memcpy(out + kNameAt, hello.name.data(), length);
  return bytes;
}

// Whatever the locale: both ends judge alike.
bool isWorkerName(std::string_view name) noexcept {
  const auto isControl = [](char one) {
    const auto code = static_cast<unsigned char>(one);
    return code < 0x20 || code == 0x7f;
  };
  return !name.empty() && name.size() <= Hello::kMaxName && std::ranges::none_of(name, isControl);
}

std::optional<Hello> decodeHello(std::span<const std::byte, Hello::kBytes> bytes,
                                 RefusalCode& refusal) {
  const std::byte* in = bytes.data();
  refusal = RefusalCode::kMalformed;
  if (!hasMagic(in, kHelloMagic)) return std::nullopt;
  Hello hello;
  hello.version = loadLittle<std::uint16_t>(in + kVersionAt);
  if (hello.version != kProtocolVersion) {
    refusal = RefusalCode::kVersion;  // the rest may mean something else there
    return std::nullopt;
  }
  const auto role = loadLittle<std::uint8_t>(in + kRoleAt);
  if (role != static_cast<std::uint8_t>(HelloRole::kDialler) &&
      role != static_cast<std::uint8_t>(HelloRole::kAcceptor)) {
    return std::nullopt;
  }
  hello.role = static_cast<HelloRole>(role);
  const auto length = loadLittle<std::uint8_t>(in + kNameLengthAt);
  const std::string_view room(reinterpret_cast<const char*>(in + kNameAt), Hello::kMaxName);
  hello.name = room.substr(0, length);
  // Exactly one encoding per hello: only zeros behind the name.
  const std::string_view behind = room.substr(hello.name.size());
  if (length > Hello::kMaxName || !isWorkerName(hello.name) ||
      behind.find_first_not_of('\0') != std::string_view::npos) {
    return std::nullopt;
  }
  hello.rank = static_cast<std::int32_t>(loadLittle<std::uint32_t>(in + kRankAt));
  hello.target_rank = static_cast<std::int32_t>(loadLittle<std::uint32_t>(in + kTargetRankAt));
  if (hello.rank < 0 || hello.target_rank < 0) return std::nullopt;
  const auto wish = loadLittle<std::uint8_t>(in + kEncryptionAt);
  const auto certificates = loadLittle<std::uint8_t>(in + kCertificatesAt);
  if (wish > static_cast<std::uint8_t>(EncryptionTerms::Wish::kRequired)) return std::nullopt;
  hello.encryption = {static_cast<EncryptionTerms::Wish>(wish), certificates == 1};
  // Certificates are only for those who may encrypt.
  if (certificates > (wish > 0 ? 1 : 0)) return std::nullopt;
  if (loadLittle<std::uint16_t>(in + kReservedAt) != 0) return std::nullopt;
  hello.incarnation = loadLittle<std::uint64_t>(in + kIncarnationAt);
  std::memcpy(hello.group.data(), in + kGroupAt, hello.group.size());
  std::memcpy(hello.nonce.data(), in + kNonceAt, hello.nonce.size());
  std::memcpy(hello.target_name.data(), in + kTargetNameAt, hello.target_name.size());
  refusal = RefusalCode::kNone;
  return hello;
}

const char* explain(RefusalCode code) noexcept {
  switch (code) {
    case RefusalCode::kVersion:
      return "it speaks another version of the protocol; install the same Weft on all workers";
    case RefusalCode::kGroup:
      return "it belongs to another group; check that both were started for the same job";
    case RefusalCode::kIdentity:
      return "the ranks or names do not match: another worker answers at this address, or a rank "
             "or name was given twice";
    case RefusalCode::kKey:
      return "the authentication keys differ; give all workers the same key file "
             "(WEFT_AUTH_KEY_FILE)";
    case RefusalCode::kMalformed:
      return "the process at this address does not speak Weft's protocol";
    case RefusalCode::kEncryption:
      return "one of the two requires encryption, and the other has it off; set WEFT_ENCRYPTION, "
             "the key file and the certificates alike on all workers";
    case RefusalCode::kCredentials:
      return "one of the two has certificates, and the other has none; set WEFT_TLS_CERT, "
             "WEFT_TLS_KEY and WEFT_TLS_CA on all workers or on none";
    case RefusalCode::kCertificateName:
      return "this worker's certificate (WEFT_TLS_CERT) is not for its name";
    default:
      return "its reason is unknown here; install the same Weft on all workers";
  }
}

RefusalBytes encodeRefusal(const Refusal& refusal) {
  RefusalBytes bytes{};
  std::memcpy(bytes.data(), kRefusalMagic, kMagicBytes);
  storeLittle<std::uint16_t>(bytes.data() + 8, refusal.version);
  storeLittle<std::uint16_t>(bytes.data() + 10, static_cast<std::uint16_t>(refusal.code));
  return bytes;
}

bool isRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept {
  return hasMagic(bytes.data(), kRefusalMagic);
}

Refusal decodeRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept {
  Refusal refusal;
  refusal.version = loadLittle<std::uint16_t>(bytes.data() + 8);
  const auto code = loadLittle<std::uint16_t>(bytes.data() + 10);
  const bool known = code != 0 && code < kRefusalCodes;
  refusal.code = known ? static_cast<RefusalCode>(code) : RefusalCode::kMalformed;
  return refusal;
}

void encodeClaim(const SessionClaim& claim, std::byte* out) noexcept {
  storeLittle<std::uint64_t>(out, claim.own);
  storeLittle<std::uint64_t>(out + 8, claim.peer);
  storeLittle<std::uint64_t>(out + 16, claim.received);
  storeLittle<std::uint32_t>(out + 24, claim.link);
  storeLittle<std::uint32_t>(out + 28, claim.bulk);
}

StartTlsBytes encodeStartTls() {
  StartTlsBytes bytes{};
  std::memcpy(bytes.data(), kStartTlsMagic, kMagicBytes);
  storeLittle<std::uint16_t>(bytes.data() + kMagicBytes, kProtocolVersion);
  return bytes;
}

bool isStartTls(std::span<const std::byte, StartTls::kBytes> bytes) noexcept {
  const StartTlsBytes right = encodeStartTls();
  return std::equal(bytes.begin(), bytes.end(), right.begin());
}

ProofBytes encodeProof(const Proof& proof) {
  ProofBytes bytes{};
  std::memcpy(bytes.data(), kProofMagic, kMagicBytes);
  std::memcpy(bytes.data() + kMagicBytes, proof.mac.data(), proof.mac.size());
  encodeClaim(proof.claim, bytes.data() + kClaimAt);
  return bytes;
}

std::optional<Proof> decodeProof(std::span<const std::byte, Proof::kBytes> bytes) noexcept {
  if (!hasMagic(bytes.data(), kProofMagic)) return std::nullopt;
  Proof proof;
  std::memcpy(proof.mac.data(), bytes.data() + kMagicBytes, proof.mac.size());
  const std::byte* const claim = bytes.data() + kClaimAt;
  proof.claim.own = loadLittle<std::uint64_t>(claim);
  proof.claim.peer = loadLittle<std::uint64_t>(claim + 8);
  proof.claim.received = loadLittle<std::uint64_t>(claim + 16);
  proof.claim.link = loadLittle<std::uint32_t>(claim + 24);
  proof.claim.bulk = loadLittle<std::uint32_t>(claim + 28);
  if (proof.claim.own == 0 || proof.claim.link == 0) return std::nullopt;
  if (proof.claim.bulk > 1) return std::nullopt;
  return proof;
}

}  // namespace weft::transport
