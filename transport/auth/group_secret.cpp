#include "transport/auth/group_secret.h"

#include <algorithm>

namespace weft::transport {

Result<std::string> newSecretText() {
  const Result<AuthKey> group = AuthKey::random();
  const Result<AuthKey> key = AuthKey::random();
  if (!group.ok()) return group.error();
  if (!key.ok()) return key.error();
  return group.value().toHex() + key.value().toHex();
}

Result<GroupSecret> parseSecret(std::string_view text) {
  constexpr std::size_t kHex = AuthKey::kBytes * 2;
  const Result<AuthKey> key = AuthKey::fromHex(text.substr(std::min(kHex, text.size())));
  if (text.size() != 2 * kHex || !key.ok())
    return Error(ErrorCode::kProtocol, "the group secret in the Store is malformed");
  return GroupSecret{std::string(text.substr(0, kHex)), key.value()};
}

}  // namespace weft::transport
