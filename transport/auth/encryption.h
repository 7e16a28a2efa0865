// What each side of a connection wants of encryption, and what the two agree on. It is part of the
// hello, which both proofs cover: nobody on the way can change it unnoticed.
#pragma once

#include <cstdint>

namespace weft::transport {

// An endpoint's choice. Unix sockets are never encrypted: the kernel carries their bytes.
enum class Encryption : std::uint8_t {
  kOff,           // never; a peer that requires it is refused
  kBetweenHosts,  // required over TCP, unless both ends see that the other one has their address
  kOn,            // required over TCP
};

// For one connection; numbers are the wire's.
struct EncryptionTerms {
  enum class Wish : std::uint8_t { kNever = 0, kPossible = 1, kRequired = 2 };
  Wish wish = Wish::kNever;
  bool certificates = false;  // else by the group's key; never with kNever

  bool operator==(const EncryptionTerms&) const = default;
};

enum class EncryptionVerdict : std::uint8_t {
  kPlain,
  kEncrypted,
  kRefusedByOne,      // one requires what the other never does
  kCertificateOfOne,  // one has certificates, the other only the key
};

constexpr EncryptionVerdict agree(const EncryptionTerms& one, const EncryptionTerms& other) {
  using Wish = EncryptionTerms::Wish;
  if (one.wish != Wish::kRequired && other.wish != Wish::kRequired)
    return EncryptionVerdict::kPlain;
  if (one.wish == Wish::kNever || other.wish == Wish::kNever)
    return EncryptionVerdict::kRefusedByOne;
  return one.certificates == other.certificates ? EncryptionVerdict::kEncrypted
                                                : EncryptionVerdict::kCertificateOfOne;
}

constexpr EncryptionTerms termsFor(Encryption choice, bool certificates, bool tcp, bool same_host) {
  using Wish = EncryptionTerms::Wish;
  if (choice == Encryption::kOff || !tcp) return {};
  const bool required = choice == Encryption::kOn || !same_host;
  return {required ? Wish::kRequired : Wish::kPossible, certificates};
}

}  // namespace weft::transport
