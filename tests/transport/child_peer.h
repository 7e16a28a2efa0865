// A process with an endpoint of rank 1 that knows another as soon as it is told its address. To be
// made before any thread of this process is started.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/transport/pipe_lines.h"
#include "tests/transport/recorder.h"

namespace weft::transport {

class ChildPeer {
 public:
  // `others`: the rank that it knows. It answers "say …" with the rest.
  explicit ChildPeer(Via via, const std::function<void(EndpointOptions&)>& adjust = {},
                     std::int32_t others = 0) {
    int up[2];
    int down[2];
    EXPECT_EQ(::pipe(up), 0);
    EXPECT_EQ(::pipe(down), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(up[0]);
      ::close(down[1]);
      EndpointOptions options = optionsFor(1, via);
      if (adjust) adjust(options);
      Recorder recorder;
      std::unique_ptr<Endpoint> endpoint;
      recorder.react = [&](const Recorder::Received& got) {
        if (!got.header.starts_with("say ")) return;
        static_cast<void>(endpoint->send(others, textMessage(got.header.substr(4))));
      };
      endpoint = openEndpoint(options, recorder);
      writeLine(up[1], endpoint->address());
      expectOk(endpoint->addPeer({others, "worker" + std::to_string(others), readLine(down[0])}));
      expectOk(endpoint->send(others, textMessage("up")));
      readLine(down[0]);  // until the parent closes it
      endpoint->close();
      ::_exit(0);
    }
    ::close(up[1]);
    ::close(down[0]);
    from_ = up[0];
    to_ = down[1];
    address_ = readLine(from_);
  }
  ~ChildPeer() {
    finish();
    ::close(from_);
  }

  const std::string& address() const { return address_; }
  void introduce(const Endpoint& endpoint) { writeLine(to_, endpoint.address()); }
  void kill(int signal) { ::kill(pid_, signal); }
  // Lets it close its endpoint in order, and ends it in any case.
  void leave() { ::close(std::exchange(to_, -1)); }
  void finish() {
    if (pid_ <= 0) return;
    if (to_ >= 0) {
      ::kill(pid_, SIGKILL);
      leave();
    }
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
  int to_ = -1;
  std::string address_;
};

}  // namespace weft::transport
