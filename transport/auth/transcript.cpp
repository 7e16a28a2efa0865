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

}  // namespace

Digest Transcript::mac(const AuthKey& key, HelloRole role, const SessionClaim& claim) const {
  const std::string_view label = role == HelloRole::kDialler ? kDiallerLabel : kAcceptorLabel;
  std::array<std::byte,
             kLabelBytes + 2 * Hello::kBytes + SessionClaim::kBytes + sizeof(channel_binding)>
      text{};
  std::byte* end = text.data();
  std::memcpy(end, label.data(), label.size());
  end += kLabelBytes;
  std::memcpy(end, dialler_hello.data(), Hello::kBytes);
  std::memcpy(end + Hello::kBytes, acceptor_hello.data(), Hello::kBytes);
  end += 2 * Hello::kBytes;
  encodeClaim(claim, end);
  std::memcpy(end + SessionClaim::kBytes, channel_binding.data(), channel_binding.size());
  return hmacSha256(key, text);
}

Digest Transcript::tlsKey(const AuthKey& key) const {
  std::array<std::byte, kLabelBytes + 2 * Hello::kBytes> text{};
  std::memcpy(text.data(), kTlsLabel.data(), kTlsLabel.size());
  std::memcpy(text.data() + kLabelBytes, dialler_hello.data(), Hello::kBytes);
  std::memcpy(text.data() + kLabelBytes + Hello::kBytes, acceptor_hello.data(), Hello::kBytes);
  return hmacSha256(key, text);
}

CheckedStream::Seeds Transcript::checksumSeeds(HelloRole role) const noexcept {
  const std::uint32_t seed = crc32c(crc32c(0, dialler_hello), acceptor_hello);
  const bool dialler = role == HelloRole::kDialler;
  return {dialler ? ~seed : seed, dialler ? seed : ~seed};
}

}  // namespace weft::transport
