#include "transport/io/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "transport/base/os/system_error.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool loopback = false;
  int rank = 0;  // 0: IPv4; 1: IPv6; 2: IPv6 that is valid on its link only
};

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return text.data();
}

bool isLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

int rankOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) ? 2 : 1;
}

// In the order of their ranks.
Result<std::vector<InterfaceAddress>> interfacesThatAreUp() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return systemError("listing the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(list, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({each->ifa_name, numeric(each->ifa_addr, length), isLoopback(each->ifa_addr),
                     rankOf(each->ifa_addr)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& one, const auto& other) { return one.rank < other.rank; });
  return found;
}

std::string listOf(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& each : all) {
    if (!text.empty()) text += ", ";
    text += each.interface + " " + each.address;
  }
  return text.empty() ? "none" : text;
}

Result<ListenChoice> chooseWanted(const std::vector<InterfaceAddress>& all,
                                  const std::string& wanted) {
  for (const InterfaceAddress& each : all) {
    if (each.address == wanted || each.interface == wanted) return ListenChoice{each.address, ""};
  }
  return invalidArgument("no network interface that is up has the name or address '" + wanted +
                         "'; this host has: " + listOf(all) +
                         " (WEFT_SOCKET_IFNAME or the interface option)");
}

bool isLoopbackText(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

struct Route {
  std::string source;  // empty: none was found
  std::string problem = "no route";
  bool loopback = false;  // the name stands for loopback on this host
};

// The address from which `host` is reached. Connecting a UDP socket sends nothing: it only asks the
// kernel for the route.
Route routeTo(const std::string& host) {
  Route route;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int status = ::getaddrinfo(host.c_str(), "9", &hints, &list); status != 0) {
    route.problem = ::gai_strerror(status);
    return route;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(list, &::freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr && route.source.empty(); each = each->ai_next) {
    if (isLoopback(each->ai_addr)) {
      route.loopback = true;
      continue;
    }
    const UniqueFd fd(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || ::connect(fd.get(), each->ai_addr, each->ai_addrlen) != 0) {
      route.problem = errnoText(errno);
      continue;
    }
    sockaddr_storage source{};
    socklen_t length = sizeof(source);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&source), &length) == 0)
      route.source = numeric(reinterpret_cast<const sockaddr*>(&source), length);
  }
  return route;
}

}  // namespace

Result<ListenChoice> chooseListenAddress(const std::string& master_host,
                                         const std::string& wanted) {
  Result<std::vector<InterfaceAddress>> interfaces = interfacesThatAreUp();
  if (!interfaces.ok()) return interfaces.error();
  const std::vector<InterfaceAddress>& all = interfaces.value();
  if (!wanted.empty()) return chooseWanted(all, wanted);

  std::string host = master_host;
  if (isLoopbackText(host))
    return ListenChoice{host.find(':') != std::string::npos ? "::1" : "127.0.0.1", ""};
  if (host.empty()) {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0)
      return systemError("reading the name of this host", errno);
    host = name.data();
  }
  const Route route = routeTo(host);
  if (!route.source.empty()) return ListenChoice{route.source, ""};

  const auto fallback = std::find_if(all.begin(), all.end(), [](const InterfaceAddress& each) {
    return !each.loopback && each.rank < 2;
  });
  const bool networked = fallback != all.end();
  const std::string address = networked ? fallback->address : "127.0.0.1";
  const std::string remedy =
      "; if other hosts cannot reach it, name the interface (WEFT_SOCKET_IFNAME)";
  if (route.loopback) {
    // Debian gives the host's own name 127.0.1.1, where nobody else could connect to.
    return ListenChoice{
        address,
        networked
            ? "the name '" + host +
                  "' stands for a loopback address on this host (see /etc/hosts); listening on " +
                  fallback->interface + ", " + address + ", instead" + remedy
            : ""};
  }
  if (master_host.empty()) {
    return ListenChoice{address, "the name of this host, '" + host + "', cannot be resolved (" +
                                     route.problem + "); listening on " + address + remedy};
  }
  return Error(ErrorCode::kConnectFailed, "cannot find a route to the master '" + master_host +
                                              "' (" + route.problem +
                                              "); check MASTER_ADDR and the network, or name the "
                                              "interface to listen on (WEFT_SOCKET_IFNAME)");
}

}  // namespace weft::transport
