// Several hosts on one machine: network namespaces on a switch, with cables that can be pulled.
// Needs root and the `ip` command. They go with this object, and also when the test is killed: a
// process of its own takes them away as soon as nobody of the test holds its pipe.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace weft::collectives {

class Namespaces {
 public:
  explicit Namespaces(int hosts) : hosts_(hosts) {
    if (::geteuid() != 0) {
      problem_ = "network namespaces need root";
      return;
    }
    std::string removal = "ip netns del " + hub();
    for (int host = 0; host < hosts_; ++host)
      removal += "; ip netns del " + name(host);
    // A session of its own: what ends the test's processes as a group does not end it.
    const std::string keeper = "exec setsid sh -c 'cat; " + removal + "' >/dev/null 2>&1";
    keeper_ = ::popen(keeper.c_str(), "we");  // NOLINT(cert-env33-c): no input of others
    problem_ = keeper_ == nullptr ? "this machine has no shell" : build();
  }
  ~Namespaces() {
    if (keeper_ != nullptr) ::pclose(keeper_);  // waits until they are gone
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // Why there are none; "" when all is well.
  const std::string& problem() const { return problem_; }
  static std::string address(int host) { return "10.213.77." + std::to_string(host + 1); }

  // Moves this process, which has one thread, to that host.
  void enter(int host) const {
    const int fd = ::open(("/var/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter a host");
    ::close(fd);
  }
  void pullCable(int host) const {
    if (!run("ip -n " + name(host) + " link set uplink down"))
      throw std::runtime_error("cannot pull the cable");
  }

 private:
  // Short: an interface's name has 15 characters, and of two tests at once each has its own.
  std::string name(int host) const { return tag_ + "h" + std::to_string(host); }
  std::string hub() const { return tag_ + "hub"; }
  static bool run(const std::string& command) {
    return std::system((command + " 2>/dev/null").c_str()) == 0;  // NOLINT(concurrency-mt-unsafe)
  }

  std::string build() {
    if (!run("ip netns add " + hub()))
      return "this machine permits no network namespaces (or has no `ip` command)";
    if (!run("ip -n " + hub() + " link add switch type bridge") ||
        !run("ip -n " + hub() + " link set switch up"))
      return "this machine has no network bridges";
    for (int host = 0; host < hosts_; ++host) {
      const std::string port = "port" + std::to_string(host);
      const std::string ip = "ip -n " + name(host) + " ";
      if (!run("ip netns add " + name(host)) ||
          !run(ip + "link add uplink type veth peer name " + port + " netns " + hub()) ||
          !run("ip -n " + hub() + " link set " + port + " master switch up") ||
          !run(ip + "addr add " + address(host) + "/24 dev uplink") ||
          !run(ip + "link set uplink up") || !run(ip + "link set lo up"))
        return "this machine cannot connect network namespaces";
    }
    return {};
  }

  const int hosts_;
  const std::string tag_ = "weft" + std::to_string(::getpid() % 100000);
  std::FILE* keeper_ = nullptr;
  std::string problem_;
};

}  // namespace weft::collectives
