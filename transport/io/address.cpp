#include "transport/io/address.h"

#include <sys/stat.h>

#include <fstream>

#include "transport/base/parse_number.h"

namespace weft::transport {
namespace {

constexpr std::string_view kScheme = "weft1";
constexpr std::size_t kMaxUnixName = 100;  // sun_path has 108

Error badAddress(std::string_view text, const char* why) {
  return invalidArgument("'" + std::string(text.substr(0, 80)) +
                         "' is not the address of a Weft endpoint (" + why +
                         "); check that both run the same Weft");
}

bool parseHostPort(std::string_view text, Address& address) {
  const bool v6 = !text.empty() && text.front() == '[';
  const std::size_t end_of_host = text.find(v6 ? "]:" : ":");
  if (end_of_host == std::string_view::npos) return false;
  const std::string_view host = text.substr(v6 ? 1 : 0, end_of_host - (v6 ? 1 : 0));
  const std::string_view port = text.substr(end_of_host + (v6 ? 2 : 1));
  const auto number = parseNumber<std::uint16_t>(port);
  if (number.value_or(0) == 0 || host.empty()) return false;
  address.tcp_host = host;
  address.tcp_port = *number;
  return true;
}

}  // namespace

std::string formatHostPort(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string formatAddress(const Address& address) {
  std::string text(kScheme);
  if (address.hasTcp()) text += ";tcp=" + formatHostPort(address.tcp_host, address.tcp_port);
  if (address.hasUnix()) text += ";unix=" + address.unix_name;
  if (!address.host.empty()) text += ";host=" + address.host;
  return text;
}

Result<Address> parseAddress(std::string_view text) {
  if (text.size() > Address::kMaxText) return badAddress(text, "it is too long");
  for (const char c : text) {
    if (c < ' ' || c > '~') return badAddress("…", "it has unprintable characters");
  }
  std::string_view rest = text;
  const auto next = [&rest] {
    const std::size_t end = rest.find(';');
    const std::string_view field = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    return field;
  };
  if (next() != kScheme) return badAddress(text, "it does not begin with weft1");
  Address address;
  while (!rest.empty()) {
    const std::string_view field = next();
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return badAddress(text, "a field has no '='");
    const std::string_view key = field.substr(0, equals);
    const std::string_view value = field.substr(equals + 1);
    if (key == "tcp") {
      if (!parseHostPort(value, address)) return badAddress(text, "the TCP part is not host:port");
    } else if (key == "unix") {
      if (value.empty() || value.size() > kMaxUnixName)
        return badAddress(text, "the Unix socket's name is empty or too long");
      address.unix_name = value;
    } else if (key == "host") {
      address.host = value;
    }
  }
  if (!address.hasTcp() && !address.hasUnix())
    return badAddress(text, "it has neither a TCP nor a Unix part");
  return address;
}

std::string hostIdentity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat info {};
  if (boot_id.size() != 36 || ::stat("/proc/self/ns/net", &info) != 0) return {};
  return boot_id + "-" + std::to_string(info.st_ino);
}

}  // namespace weft::transport
