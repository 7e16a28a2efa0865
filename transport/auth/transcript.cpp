#include "transport/auth/transcript.h"

#include <array>
#include <cstring>
#include <string_view>

#include "transport/checksum/crc32c.h"

namespace weft::transport {
namespace {

constexpr std::string_view kDiallerLabel = "weft dialler proof v3";
constexpr std::string_view kAcceptorLabel = "weft acceptor proof v3";
constexpr std::string_view kTlsLabel = "weft tls";
constexpr std::size_t kLabelBytes = 32;  // zero padded: no two inputs coincide

constexpr std::size_t kBeginning = kLabelBytes + 2 * Hello::kBytes;

// Writes what each text begins with to `text`, which is zeros. Returns its end.
std::byte* begin(std::byte* text, std::string_view label, const Transcript& said) {
  std::memcpy(text, label.data(), label.size());
  text += kLabelBytes;
  std::memcpy(text, said.dialler_hello.data(), Hello::kBytes);
  std::memcpy(text + Hello::kBytes, said.acceptor_hello.data(), Hello::kBytes);
  return text + 2 * Hello::kBytes;
}

}  // namespace

Digest Transcript::mac(const AuthKey& key, HelloRole role, const SessionClaim& claim) const {
  const std::string_view label = role == HelloRole::kDialler ? kDiallerLabel : kAcceptorLabel;
  std::array<std::byte, kBeginning + SessionClaim::kBytes + sizeof(channel_binding)> text{};
  std::byte* const end = begin(text.data(), label, *this);
  encodeClaim(claim, end);
  std::memcpy(end + SessionClaim::kBytes, channel_binding.data(), channel_binding.size());
  return hmacSha256(key, text);
}

Digest Transcript::tlsKey(const AuthKey& key) const {
  std::array<std::byte, kBeginning> text{};
  begin(text.data(), kTlsLabel, *this);
  return hmacSha256(key, text);
}

CheckedStream::Seeds Transcript::checksumSeeds(HelloRole role) const noexcept {
  const std::uint32_t seed = crc32c(crc32c(0, dialler_hello), acceptor_hello);
  const bool dialler = role == HelloRole::kDialler;
  return {dialler ? ~seed : seed, dialler ? seed : ~seed};
}

}  // namespace weft::transport
