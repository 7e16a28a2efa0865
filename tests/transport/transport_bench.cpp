// Two processes on one host: round trips and throughput of an Endpoint, and of bare blocking
// sockets beside it in the same run. Prints a table; asserts nothing.
//   transport_bench [rounds]
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

struct Quantiles {
  double p50 = 0;
  double p99 = 0;
};

Quantiles quantiles(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() * 99 / 100]};
}

enum class Way { kUnix, kTcp, kTcpOneConnection, kTls, kTlsOneConnection };

// --- an endpoint on each side ---

// Memory for large buffers is reused, as an application's allocator would.
class Pool {
 public:
  OwnedBuffer take(std::size_t size) {
    if (memory_ == nullptr || memory_.use_count() > 1 || size_ < size) {
      memory_ = std::shared_ptr<std::byte[]>(new std::byte[size]);
      size_ = size;
    }
    return {memory_.get(), size, memory_};
  }
  void fill(std::span<const std::uint64_t> sizes, std::vector<OwnedBuffer>& buffers) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (buffers[i].owner == nullptr) buffers[i] = take(sizes[i]);
    }
  }

 private:
  std::shared_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

// Answers "echo" with its buffers and anything else with an empty message.
class Server : public EndpointHandler {
 public:
  Endpoint* endpoint = nullptr;
  Disposition onHeader(std::int32_t, std::span<const std::byte>,
                       std::span<const std::uint64_t> sizes,
                       std::vector<OwnedBuffer>& buffers) override {
    pool_.fill(sizes, buffers);
    return Disposition::kAccept;
  }
  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<OwnedBuffer> buffers) override {
    Message reply;
    if (header.size() == 64) {
      reply.header.assign(header.begin(), header.end());
      reply.buffers = std::move(buffers);
    }
    static_cast<void>(endpoint->send(from, std::move(reply)));
  }
  void onPeerLost(const PeerLoss&) override {}

 private:
  Pool pool_;
};

class Client : public EndpointHandler {
 public:
  Disposition onHeader(std::int32_t, std::span<const std::byte>,
                       std::span<const std::uint64_t> sizes,
                       std::vector<OwnedBuffer>& buffers) override {
    pool_.fill(sizes, buffers);
    return Disposition::kAccept;
  }
  void onMessage(std::int32_t, std::span<const std::byte>, std::vector<OwnedBuffer>) override {
    replies_.fetch_add(1);
    replies_.notify_one();
  }
  void onPeerLost(const PeerLoss& loss) override {
    std::printf("%s\n", loss.reason.text().c_str());
  }
  void waitFor(int count) {
    for (int seen = replies_.load(); seen < count; seen = replies_.load())
      replies_.wait(seen);
  }

 private:
  std::atomic<int> replies_{0};
  Pool pool_;
};

EndpointOptions benchOptions(std::int32_t rank, Way way) {
  EndpointOptions options;
  options.group_id = "bench";
  options.rank = rank;
  options.name = "bench" + std::to_string(rank);
  options.key = AuthKey::fromHex(std::string(64, 'a')).value();
  options.listen_address = "127.0.0.1";
  options.tcp = way != Way::kUnix;
  options.unix_socket = way == Way::kUnix;
  options.bulk.enabled = way == Way::kTcp || way == Way::kTls;
  if (way == Way::kTls || way == Way::kTlsOneConnection) options.encryption = Encryption::kOn;
  return options;
}

struct Figures {
  Quantiles small;
  std::array<double, 4> gbytes{};  // per second, of kSizes
};

// Messages of so many bytes, so many times.
constexpr std::pair<std::size_t, int> kSizes[] = {
    {std::size_t{1} << 20, 1000},
    {std::size_t{4} << 20, 250},
    {std::size_t{16} << 20, 80},
    {std::size_t{64} << 20, 20},
};

double throughput(Endpoint& endpoint, Client& client, std::size_t size, int count, int& replies) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[size]);
  std::memset(memory.get(), 1, size);
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    static_cast<void>(
        endpoint.send(1, {std::vector<std::byte>(8), {{memory.get(), size, memory}}}));
    // Two in flight: enough to keep the pipe full, few enough to stay in cache.
    client.waitFor(++replies - 1);
  }
  client.waitFor(replies);
  return static_cast<double>(size) * count / microseconds(Clock::now() - begin) / 1000.0;
}

Figures endpointFigures(Way way, int rounds) {
  int up[2];
  int down[2];
  if (::pipe(up) != 0 || ::pipe(down) != 0) std::abort();
  const pid_t child = ::fork();
  char text[600] = {};
  if (child == 0) {
    ::close(down[1]);
    Server server;
    auto endpoint = std::move(Endpoint::create(benchOptions(1, way), server)).value();
    server.endpoint = endpoint.get();
    if (::write(up[1], endpoint->address().c_str(), endpoint->address().size() + 1) < 0)
      std::abort();
    if (::read(down[0], text, sizeof(text)) <= 0) std::abort();
    static_cast<void>(endpoint->addPeer({0, "bench0", text}));
    while (::read(down[0], text, 1) > 0) {
    }
    endpoint->close();
    ::_exit(0);
  }
  ::close(down[0]);
  if (::read(up[0], text, sizeof(text)) <= 0) std::abort();
  Client client;
  auto endpoint = std::move(Endpoint::create(benchOptions(0, way), client)).value();
  static_cast<void>(endpoint->addPeer({1, "bench1", text}));
  if (::write(down[1], endpoint->address().c_str(), endpoint->address().size() + 1) < 0)
    std::abort();

  Figures figures;
  int replies = 0;
  std::vector<double> samples;
  const std::shared_ptr<std::byte[]> four(new std::byte[4]());
  for (int i = -rounds / 10; i < rounds; ++i) {
    const auto begin = Clock::now();
    static_cast<void>(endpoint->send(1, {std::vector<std::byte>(64), {{four.get(), 4, four}}}));
    client.waitFor(++replies);
    if (i >= 0) samples.push_back(microseconds(Clock::now() - begin));
  }
  figures.small = quantiles(std::move(samples));
  for (std::size_t i = 0; i < std::size(kSizes); ++i)
    figures.gbytes[i] = throughput(*endpoint, client, kSizes[i].first, kSizes[i].second, replies);
  endpoint->close();
  ::close(down[1]);
  ::close(up[0]);
  ::close(up[1]);
  ::waitpid(child, nullptr, 0);
  return figures;
}

// --- bare sockets ---

void readAll(int fd, char* into, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t got = ::read(fd, into + at, size - at);
    if (got <= 0) ::_exit(0);
    at += static_cast<std::size_t>(got);
  }
}

void writeAll(int fd, const char* from, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t sent = ::write(fd, from + at, size - at);
    if (sent <= 0) ::_exit(1);
    at += static_cast<std::size_t>(sent);
  }
}

void connectedPair(bool tcp, int fds[2]) {
  if (!tcp) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::abort();
    return;
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(where);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0 ||
      ::listen(listener, 1) != 0)
    std::abort();
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&where), &length) != 0) std::abort();
  fds[0] = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(fds[0], reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0) std::abort();
  fds[1] = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (int i = 0; i < 2; ++i)
    ::setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Figures socketFigures(bool tcp, int rounds) {
  constexpr std::size_t kSmall = 116;  // as much as the endpoint's message has on the wire
  constexpr std::size_t kLargest = std::size_t{64} << 20;
  int fds[2];
  connectedPair(tcp, fds);
  std::vector<char> memory(kLargest, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    for (int i = -rounds / 10; i < rounds; ++i) {
      readAll(fds[1], memory.data(), kSmall);
      writeAll(fds[1], memory.data(), kSmall);
    }
    for (const auto& [size, count] : kSizes) {
      for (int i = 0; i < count; ++i)
        readAll(fds[1], memory.data(), size);
      writeAll(fds[1], memory.data(), 1);
    }
    ::_exit(0);
  }
  ::close(fds[1]);
  Figures figures;
  std::vector<double> samples;
  for (int i = -rounds / 10; i < rounds; ++i) {
    const auto begin = Clock::now();
    writeAll(fds[0], memory.data(), kSmall);
    readAll(fds[0], memory.data(), kSmall);
    if (i >= 0) samples.push_back(microseconds(Clock::now() - begin));
  }
  figures.small = quantiles(std::move(samples));
  const auto stream = [&](std::size_t size, int count) {
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i)
      writeAll(fds[0], memory.data(), size);
    readAll(fds[0], memory.data(), 1);
    return static_cast<double>(size) * count / microseconds(Clock::now() - begin) / 1000.0;
  };
  for (std::size_t i = 0; i < std::size(kSizes); ++i)
    figures.gbytes[i] = stream(kSizes[i].first, kSizes[i].second);
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
  return figures;
}

void print(const char* name, const Figures& figures) {
  std::printf("%-22s %8.1f %8.1f", name, figures.small.p50, figures.small.p99);
  for (const double gbytes : figures.gbytes)
    std::printf(" %8.2f", gbytes);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20'000;
  std::printf("%-22s %8s %8s %8s %8s %8s %8s\n", "round trip; GB/s", "p50 us", "p99 us", "1 MiB",
              "4 MiB", "16 MiB", "64 MiB");
  std::fflush(stdout);
  for (int turn = 0; turn < 3; ++turn) {
    print("unix, bare socket", socketFigures(false, rounds));
    print("unix, endpoint", endpointFigures(Way::kUnix, rounds));
    print("tcp, bare socket", socketFigures(true, rounds));
    print("tcp, endpoint", endpointFigures(Way::kTcp, rounds));
    print("tcp, one connection", endpointFigures(Way::kTcpOneConnection, rounds));
    print("tls, endpoint", endpointFigures(Way::kTls, rounds));
    print("tls, one connection", endpointFigures(Way::kTlsOneConnection, rounds));
  }
  return 0;
}
