// The fixed-size messages of the handshake, and nothing else: a stranger's bytes get no
// further than these parsers. docs/design/wire_format.md describes them for people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/auth/session_claim.h"

namespace weft::transport {

using Digest = std::array<std::uint8_t, 32>;
using Nonce = std::array<std::uint8_t, 32>;

constexpr std::uint16_t kProtocolVersion = 2;

enum class HelloRole : std::uint8_t { kDialler = 1, kAcceptor = 2 };

struct Hello {
  static constexpr std::size_t kBytes = 256;
  static constexpr std::size_t kMaxName = 128;

  std::uint16_t version = kProtocolVersion;
  HelloRole role = HelloRole::kDialler;
  std::string name;               // 1..128 bytes, no zero byte
  std::int32_t rank = -1;         // of the one who speaks, >= 0
  std::int32_t target_rank = -1;  // of the one meant, >= 0
  std::uint64_t incarnation = 0;  // drawn at random by each endpoint that starts
  Digest group{};                 // SHA-256 of the group id
  Nonce nonce{};
  Digest target_name{};  // SHA-256 of the name of the one meant
};

using HelloBytes = std::array<std::byte, Hello::kBytes>;

// Why a side ended the handshake. The acceptor sends it; numbers are the wire's.
enum class RefusalCode : std::uint16_t {
  kNone = 0,
  kVersion = 1,    // another protocol version
  kGroup = 2,      // another group id
  kIdentity = 3,   // a rank or name that does not fit: of the dialler, or of the one it meant
  kKey = 4,        // the proof does not fit
  kReplay = 5,     // this hello was seen before
  kDuplicate = 6,  // a connection between the two exists or is being made: wait for it
  kStale = 7,      // this life of the dialler, or the session it speaks of, is over here
  kMalformed = 8,  // not a handshake
};

struct Refusal {
  static constexpr std::size_t kBytes = 16;
  std::uint16_t version = kProtocolVersion;
  RefusalCode code = RefusalCode::kNone;
};

// That the one who speaks holds the key, and what it says of the session.
struct Proof {
  static constexpr std::size_t kBytes = 8 + 32 + SessionClaim::kBytes;
  Digest mac{};
  SessionClaim claim;
};

using RefusalBytes = std::array<std::byte, Refusal::kBytes>;
using ProofBytes = std::array<std::byte, Proof::kBytes>;

HelloBytes encodeHello(const Hello& hello);
// nullopt: `refusal` says whether it is malformed or of another version.
std::optional<Hello> decodeHello(std::span<const std::byte, Hello::kBytes> bytes,
                                 RefusalCode& refusal);

RefusalBytes encodeRefusal(const Refusal& refusal);
bool isRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept;
Refusal decodeRefusal(std::span<const std::byte, Refusal::kBytes> bytes) noexcept;

ProofBytes encodeProof(const Proof& proof);
std::optional<Proof> decodeProof(std::span<const std::byte, Proof::kBytes> bytes) noexcept;
void encodeClaim(const SessionClaim& claim, std::byte* out) noexcept;

Digest sha256(std::span<const std::byte> bytes);
Digest sha256(const std::string& text);

}  // namespace weft::transport
