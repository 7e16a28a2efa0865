#include "c10d_plugin/shm/segment/invitation.h"

#include <span>

#include "c10d_plugin/shm/segment/layout.h"
#include "c10d_plugin/store/record.h"
#include "transport/auth/digest.h"
#include "transport/base/os/secure_random.h"

namespace weft::collectives::shm {

using transport::AuthKey;

Result<AuthKey> secretFrom(const AuthKey& key, const std::string& socket) {
  const std::string text = "weft shared memory " + socket;
  return AuthKey::fromHex(
      transport::toHex(transport::hmacSha256(key, std::as_bytes(std::span(text)))));
}

std::string Invitation::toText() const {
  return Record()
      .set("socket", socket)
      .set("secret", publishes_secret ? secret.toHex() : "")
      .set("buffer_bytes", buffer_bytes)
      .set("small_bytes", small_bytes)
      .set("heap_bytes", heap_bytes)
      .toText();
}

Result<Invitation> Invitation::fromText(const std::string& text, const AuthKey& key) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const Record record = Record::fromText(text).value_or(Record());
  if (const std::string why = record.text("error"); !why.empty())
    return Error(ErrorCode::kSystem, "rank 0 could not make shared memory: " + why);
  const Result<AuthKey> secret = key.valid() ? secretFrom(key, record.text("socket"))
                                             : AuthKey::fromHex(record.text("secret"));
  const auto buffer = record.number("buffer_bytes");
  const auto small = record.number("small_bytes");
  const auto heap = record.number("heap_bytes");
  if (!secret.ok() || !buffer || !small || !heap || *buffer > kMost || *small > kMost ||
      *heap > kMostHeap) {
    return Error(ErrorCode::kProtocol, "malformed rendezvous message from rank 0");
  }
  return Invitation{record.text("socket"), secret.value(), !key.valid(), *buffer, *small, *heap};
}

}  // namespace weft::collectives::shm
