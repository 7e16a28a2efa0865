#include "transport/auth/auth_key.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "transport/auth/digest.h"
#include "transport/base/os/secret_file.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"

namespace weft::transport {
namespace {

constexpr const char* kHowToMake =
    "; make one with: (umask 077; openssl rand -hex 32 > FILE), the same file for all workers";

constexpr const char* kSpace = " \t\r\n";

}  // namespace

AuthKey::~AuthKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Result<AuthKey> AuthKey::random() {
  AuthKey key;
  if (Error error = fillRandom(key.bytes_)) return error;
  return key;
}

Result<AuthKey> AuthKey::fromHex(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  if (text.size() != 2 * kBytes) {
    return invalidArgument("an authentication key must be 64 hexadecimal digits, got " +
                           std::to_string(text.size()) + " characters");
  }
  AuthKey key;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, key.bytes_[i], 16).ptr != digits + 2) {
      return invalidArgument(
          "an authentication key must be 64 hexadecimal digits, got another character");
    }
  }
  if (!key.valid()) {
    return invalidArgument("an authentication key must not be all zeros");
  }
  return key;
}

Result<AuthKey> AuthKey::fromFile(const std::string& path) {
  const std::string what = "the authentication key file '" + path + "'";
  const Result<UniqueFd> file = openRegularFile(path, what);
  if (!file.ok()) return Error(file.error().code(), file.error().text() + kHowToMake);
  if (Error error = checkSecret(file.value(), what, path)) return error;
  std::array<char, 256> text{};
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(file.value().get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return systemError("reading " + what, errno);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  Result<AuthKey> key = fromHex(std::string_view(text.data(), length));
  OPENSSL_cleanse(text.data(), text.size());
  if (!key.ok()) return Error(key.error().code(), what + ": " + key.error().text() + kHowToMake);
  return key;
}

bool AuthKey::valid() const noexcept {
  return std::any_of(bytes_.begin(), bytes_.end(), [](std::uint8_t byte) { return byte != 0; });
}

std::string AuthKey::toHex() const { return transport::toHex(bytes_); }

std::string keyCheck(const AuthKey& key, std::string_view group_id) {
  std::string text = "weft: the same key in group ";
  text += group_id;
  return toHex(hmacSha256(key, std::as_bytes(std::span(text))));
}

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
