// An HTTP server without Python: answers with what a TorchScript model says. The model's halves are
// on two other workers, which examples/cpp_inference/server serves.
//
//   http --model front.pt [--listen 8080]
//   curl --data 'First Citizen:' 'http://127.0.0.1:8080/?count=200'
//
// The group comes from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. SIGTERM or Ctrl-C ends it.
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <torch/csrc/jit/serialization/import.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "examples/cpp_inference/flags.h"
#include "jit_ops/weft.h"

namespace {

constexpr std::size_t kMostBytes = 64 << 10;  // of a request
constexpr int kMostLetters = 1000;            // of an answer

struct Request {
  std::string body;
  int count = 100;
};

// Reads one request; throws for what is none, or too large.
Request read(int connection) {
  std::string text;
  std::size_t end = std::string::npos;
  std::size_t length = 0;
  char part[4096];
  while (end == std::string::npos || text.size() < end + 4 + length) {
    const ssize_t got = ::recv(connection, part, sizeof part, 0);
    if (got <= 0 || text.size() > kMostBytes) throw std::runtime_error("no whole request");
    text.append(part, static_cast<std::size_t>(got));
    if (end == std::string::npos && (end = text.find("\r\n\r\n")) != std::string::npos) {
      std::string head = text.substr(0, end);
      std::transform(head.begin(), head.end(), head.begin(), ::tolower);
      const std::size_t place = head.find("content-length:");
      if (place != std::string::npos) length = std::stoul(head.substr(place + 15));
      if (length > kMostBytes) throw std::runtime_error("too large");
    }
  }
  Request request{.body = text.substr(end + 4, length)};
  const std::string target = text.substr(0, text.find("\r\n"));
  const std::size_t count = target.find("count=");
  if (count != std::string::npos) request.count = std::stoi(target.substr(count + 6));
  if (request.count < 1 || request.count > kMostLetters) throw std::runtime_error("bad count");
  return request;
}

void answer(int connection, const char* status, const std::string& body) {
  const std::string text = std::string("HTTP/1.1 ") + status +
                           "\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body;
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t now = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) break;  // the client has gone
    sent += static_cast<std::size_t>(now);
  }
  ::close(connection);
}

void serve(int connection, torch::jit::Module model) {
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Request request;
  try {
    request = read(connection);
  } catch (const std::exception& error) {
    return answer(connection, "400 Bad Request", std::string(error.what()) + "\n");
  }
  try {
    const std::vector<c10::IValue> inputs{request.body, request.count};
    answer(connection, "200 OK", model.forward(inputs).toStringRef());
  } catch (const std::exception& error) {  // names the worker that is lost, and why
    answer(connection, "503 Service Unavailable", std::string(error.what()) + "\n");
  }
}

int listenOn(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);  // put a real HTTP server in front of it
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 64) != 0)
    throw std::runtime_error("cannot listen on port " + std::to_string(port));
  return listener;
}

void run(int argc, char** argv) {
  sigset_t ending;  // blocked before there are other threads, which inherit it
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  const int signals = ::signalfd(-1, &ending, SFD_CLOEXEC);

  auto model = torch::jit::load(flag(argc, argv, "--model", std::string("front.pt")));
  const int port = flag(argc, argv, "--listen", 8080);
  const int listener = listenOn(port);
  weft::JoinOptions options;
  options.name = "front";
  const auto group = weft::Group::join(options);
  std::printf("http://127.0.0.1:%d\n", port);
  std::fflush(stdout);
  std::vector<std::thread> serving;
  pollfd sources[] = {{listener, POLLIN, 0}, {signals, POLLIN, 0}};
  while (::poll(sources, 2, -1) > 0 && sources[1].revents == 0) {
    const int connection = ::accept(listener, nullptr, nullptr);
    if (connection >= 0) serving.emplace_back(serve, connection, model);
  }
  for (std::thread& one : serving)
    one.join();
  group->shutdown();  // the halves leave with it
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "http: %s\n", error.what());
    return 1;
  }
  return 0;
}
