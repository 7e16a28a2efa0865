// The fixed-size messages of the handshake. Bytes of a peer that is not authenticated get no
// further than these parsers. docs/design/wire_format.md describes them for people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/auth/digest.h"
#include "transport/auth/encryption.h"

namespace weft::transport {

using Nonce = std::array<std::uint8_t, 32>;

constexpr std::uint16_t kProtocolVersion = 6;

enum class HelloRole : std::uint8_t { kDialler = 1, kAcceptor = 2 };

struct Hello {
  static constexpr std::size_t kBytes = 256;
  static constexpr std::size_t kMaxName = 128;

  std::uint16_t version = kProtocolVersion;
  HelloRole role = HelloRole::kDialler;
  std::string name;               // isWorkerName()
  std::int32_t rank = -1;         // of the sender, >= 0
  std::int32_t target_rank = -1;  // of the receiver it expects, >= 0
  EncryptionTerms encryption;
  std::uint64_t incarnation = 0;  // drawn at random by each endpoint that starts
  Digest group{};                 // SHA-256 of the group id
  Nonce nonce{};
  Digest target_name{};  // SHA-256 of the expected receiver's name
};

// 1 to 128 bytes, no control character: logs show names before anything is proved.
bool isWorkerName(std::string_view name) noexcept;

using HelloBytes = std::array<std::byte, Hello::kBytes>;

// Why a side ended the handshake. The acceptor sends it; numbers are the wire's.
enum class RefusalCode : std::uint16_t {
  kNone = 0,
  kVersion = 1,   // another protocol version
  kGroup = 2,     // another group id
  kIdentity = 3,  // a rank or name that does not match: of the dialler or of its target
  kKey = 4,       // the proof does not match
  // 5 is reserved
  kDuplicate = 6,         // a connection between the two exists or is being made: wait for it
  kStale = 7,             // this life of the dialler, or the session it speaks of, is over here
  kMalformed = 8,         // not a handshake
  kDisplaced = 9,         // another process has taken the dialler's rank here
  kEncryption = 10,       // one side requires encryption, the other has it off
  kCredentials = 11,      // one side has certificates, the other only the key
  kCertificateName = 12,  // the dialler's certificate is not for its name
};
inline constexpr auto kRefusalCodes = static_cast<std::size_t>(RefusalCode::kCertificateName) + 1;

// What it means to whoever is refused, and what to do.
const char* explain(RefusalCode code) noexcept;

struct Refusal {
  static constexpr std::size_t kBytes = 16;
  std::uint16_t version = kProtocolVersion;
  RefusalCode code = RefusalCode::kNone;
};

// What each side claims of the session when a connection is made: which session it is, and which
// frames it has received. Part of the proof, so nobody else can claim it.
struct SessionClaim {
  static constexpr std::size_t kBytes = 32;

  std::uint64_t own = 0;       // this side's number of the session, drawn at random; never 0
  std::uint64_t peer = 0;      // the other side's; 0: unknown, there was no link yet
  std::uint64_t received = 0;  // the last data frame that this side has whole
  std::uint32_t link = 0;      // which connection of the session this one is to be; from 1
  std::uint32_t bulk = 0;      // 1: not that one, but the bulk connection of the one that stands

  bool operator==(const SessionClaim&) const = default;
};

// Proves that the sender holds the key, and says what it claims of the session.
struct Proof {
  static constexpr std::size_t kBytes = 8 + 32 + SessionClaim::kBytes;
  Digest mac{};
  SessionClaim claim;
};

// The acceptor found the dialler's proof right: what follows is TLS.
struct StartTls {
  static constexpr std::size_t kBytes = 16;
};

using StartTlsBytes = std::array<std::byte, StartTls::kBytes>;
using RefusalBytes = std::array<std::byte, Refusal::kBytes>;
using ProofBytes = std::array<std::byte, Proof::kBytes>;

HelloBytes encodeHello(const Hello& hello);
// nullopt: `refusal` says whether it is malformed or of another version.
std::optional<Hello> decodeHello(std::span<const std::byte, Hello::kBytes> bytes,
                                 RefusalCode& refusal);

RefusalBytes encodeRefusal(const Refusal& refusal);
bool isRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept;
Refusal decodeRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept;

StartTlsBytes encodeStartTls();
bool isStartTls(std::span<const std::byte, StartTls::kBytes> bytes) noexcept;

ProofBytes encodeProof(const Proof& proof);
std::optional<Proof> decodeProof(std::span<const std::byte, Proof::kBytes> bytes) noexcept;
void encodeClaim(const SessionClaim& claim, std::byte* out) noexcept;

}  // namespace weft::transport
