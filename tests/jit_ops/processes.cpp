#include "tests/jit_ops/processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

namespace weft::testing {

namespace {

constexpr unsigned kLimitSeconds = 100;

[[noreturn]] void live(std::size_t index, const std::function<void()>& life) {
  ::alarm(kLimitSeconds);
  int code = 1;
  try {
    life();
    code = 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %zu: %s\n", index, error.what());
  }
  // As a program would: static destructors run.
  std::exit(code);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace

std::vector<std::string> runWorkers(const std::vector<std::function<void()>>& lives,
                                    const std::vector<std::size_t>& may_die) {
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) live(i, lives[i]);
    children.push_back(child);
  }
  std::vector<std::string> failures;
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = -1;
    ::waitpid(children[i], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
                        std::find(may_die.begin(), may_die.end(), i) != may_die.end();
    if (killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    failures.push_back("process " + std::to_string(i) + " ended with status " +
                       std::to_string(status));
  }
  return failures;
}

void expect(bool fine, const std::string& what) {
  if (!fine) throw std::runtime_error(what);
}

void expectProblem(const std::string& part, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    expect(text.find(part) != std::string::npos, "\"" + part + "\" is not in: " + text);
    expect(text.find("frame #") == std::string::npos, "stack frames are in: " + text);
    return;
  }
  throw std::runtime_error("nothing was thrown: " + part);
}

std::string freshPath(const std::string& what) {
  static int count = 0;
  const char* folder = std::getenv("TEST_TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + what + "-" +
         std::to_string(::getpid()) + "-" + std::to_string(count++);
}

std::string freePort() {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(probe, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(probe);
  return std::to_string(ntohs(address.sin_port));
}

}  // namespace weft::testing
