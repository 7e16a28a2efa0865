#include "transport/io/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "transport/base/system_error.h"
#include "transport/base/unique_fd.h"

namespace weft::transport {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
  int family = AF_UNSPEC;
  bool loopback = false;
  bool link_local = false;
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

bool isLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

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
    found.push_back({each->ifa_name, numeric(each->ifa_addr, length), family,
                     isLoopback(each->ifa_addr), isLinkLocal(each->ifa_addr)});
  }
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
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& each : all) {
    if (each.address == wanted) return ListenChoice{each.address, ""};
    if (each.interface != wanted) continue;
    // IPv4 first, link-local IPv6 last.
    const auto badness = [](const InterfaceAddress& one) {
      return one.family == AF_INET ? 0 : one.link_local ? 2 : 1;
    };
    if (best == nullptr || badness(each) < badness(*best)) best = &each;
  }
  if (best != nullptr) return ListenChoice{best->address, ""};
  return Error(ErrorCode::kInvalidArgument,
               "no network interface that is up has the name or address '" + wanted +
                   "'; this host has: " + listOf(all) +
                   " (WEFT_SOCKET_IFNAME or the interface option)");
}

const InterfaceAddress* firstOfTheNetwork(const std::vector<InterfaceAddress>& all) {
  for (const int family : {AF_INET, AF_INET6}) {
    for (const InterfaceAddress& each : all) {
      if (each.family == family && !each.loopback && !each.link_local) return &each;
    }
  }
  return nullptr;
}

bool isLoopbackText(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

struct Route {
  std::string source;
  bool loopback_name = false;  // the name stands for loopback on this host
};

// Connecting a UDP socket sends nothing: it only asks the kernel for the route.
std::optional<Route> routeTo(const std::string& host, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int status = ::getaddrinfo(host.c_str(), "9", &hints, &list); status != 0) {
    problem = ::gai_strerror(status);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(list, &::freeaddrinfo);
  bool loopback = false;
  problem = "no route";
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (isLoopback(each->ai_addr)) {
      loopback = true;
      continue;
    }
    const UniqueFd fd(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || ::connect(fd.get(), each->ai_addr, each->ai_addrlen) != 0) {
      problem = errnoText(errno);
      continue;
    }
    sockaddr_storage source{};
    socklen_t length = sizeof(source);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&source), &length) != 0) continue;
    return Route{numeric(reinterpret_cast<const sockaddr*>(&source), length), false};
  }
  if (loopback) return Route{"", true};
  return std::nullopt;
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
      return systemError("asking for the name of this host", errno);
    host = name.data();
  }
  std::string problem;
  const std::optional<Route> route = routeTo(host, problem);
  if (route && !route->loopback_name) return ListenChoice{route->source, ""};

  const InterfaceAddress* fallback = firstOfTheNetwork(all);
  const std::string address = fallback != nullptr ? fallback->address : "127.0.0.1";
  const std::string remedy =
      "; if other hosts cannot reach it, name the interface (WEFT_SOCKET_IFNAME)";
  if (route) {
    // Debian gives the host's own name 127.0.1.1, where nobody else could connect to.
    return ListenChoice{
        address,
        fallback != nullptr
            ? "the name '" + host +
                  "' stands for a loopback address on this host (see /etc/hosts); listening on " +
                  fallback->interface + ", " + address + ", instead" + remedy
            : ""};
  }
  if (master_host.empty()) {
    return ListenChoice{address, "the name of this host, '" + host + "', cannot be resolved (" +
                                     problem + "); listening on " + address + remedy};
  }
  return Error(ErrorCode::kConnectFailed, "cannot find the way to the master '" + master_host +
                                              "' (" + problem +
                                              "); check its name and the network, or name the "
                                              "interface to listen on (WEFT_SOCKET_IFNAME)");
}

}  // namespace weft::transport
