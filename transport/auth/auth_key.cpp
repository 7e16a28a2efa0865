#include "transport/auth/auth_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/base/unique_fd.h"

namespace weft::transport {
namespace {

constexpr const char* kHowToMake =
    "; make one with: (umask 077; openssl rand -hex 32 > FILE), the same file for all workers";

int hexDigit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool isSpace(char c) noexcept { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

AuthKey::~AuthKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Result<AuthKey> AuthKey::random() {
  AuthKey key;
  if (Error error = fillRandom(key.bytes_)) return error;
  return key;
}

Result<AuthKey> AuthKey::fromHex(std::string_view text) {
  while (!text.empty() && isSpace(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && isSpace(text.back()))
    text.remove_suffix(1);
  if (text.size() != 2 * kBytes) {
    return Error(ErrorCode::kInvalidArgument,
                 "an authentication key is exactly 64 hexadecimal digits, this one has " +
                     std::to_string(text.size()) + " characters");
  }
  AuthKey key;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const int high = hexDigit(text[2 * i]);
    const int low = hexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return Error(
          ErrorCode::kInvalidArgument,
          "an authentication key is exactly 64 hexadecimal digits, this one has another character");
    }
    key.bytes_[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  if (!key.valid()) {
    return Error(ErrorCode::kInvalidArgument, "an authentication key of zeros only is no secret");
  }
  return key;
}

Result<AuthKey> AuthKey::fromFile(const std::string& path) {
  const std::string what = "authentication key file '" + path + "'";
  // O_NONBLOCK: a fifo given by mistake must not hang the start of a job.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return Error(ErrorCode::kSystem,
                 "cannot open the " + what + " (" + errnoText(errno) + ")" + kHowToMake);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return systemError("looking at the " + what, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the " + what + " is not a regular file" + kHowToMake);
  }
  if ((info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "the " + what +
                     " can be read or written by every user of this machine; run: chmod 600 '" +
                     path + "'");
  }
  std::array<char, 256> text{};
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return systemError("reading the " + what, errno);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  Result<AuthKey> key = fromHex(std::string_view(text.data(), length));
  OPENSSL_cleanse(text.data(), text.size());
  if (!key.ok())
    return Error(key.error().code(), "the " + what + ": " + key.error().text() + kHowToMake);
  return key;
}

bool AuthKey::valid() const noexcept {
  return std::any_of(bytes_.begin(), bytes_.end(), [](std::uint8_t byte) { return byte != 0; });
}

std::string AuthKey::toHex() const { return transport::toHex(bytes_); }

}  // namespace weft::transport
