// C++ client to C++ server, one-element tensor, beside the raw Unix-socket round trip of the same
// run.
//
//   latency [CALLS [pinned]]     prints one line of JSON, times in microseconds
//
// pinned: client and server each on a core of its own.
// Processes: an echo over a socket pair (the floor), where the system puts the two and again with
// each on a core of its own; then a server and a client of a group.
#include <ATen/ops/ones.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "jit_ops/weft.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Times {
  double p50 = 0;
  double p99 = 0;
};

template <typename Body>
Times measure(int count, Body&& body) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

void pin(std::size_t core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  ::sched_setaffinity(0, sizeof(only),
                      &only);  // where it may not, the figure is the other one again
}

// One byte there and back between two processes that block in read.
Times rawRoundTrip(int count, bool across) {
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof(before), &before);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
  const pid_t child = ::fork();
  char byte = 'x';
  if (across) pin(child == 0 ? 1 : 0);
  if (child == 0) {
    ::close(ends[0]);
    while (::read(ends[1], &byte, 1) == 1 && ::write(ends[1], &byte, 1) == 1) {
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  const Times times = measure(count, [&] {
    if (::write(ends[0], &byte, 1) != 1 || ::read(ends[0], &byte, 1) != 1)
      throw std::runtime_error("the echo is gone");
  });
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  ::sched_setaffinity(0, sizeof(before), &before);
  return times;
}

std::shared_ptr<weft::Group> join(const std::string& store, int rank) {
  weft::JoinOptions options;
  options.name = rank == 0 ? "server" : "client";
  options.rank = rank;
  options.world_size = 2;
  options.init_method = "file://" + store;
  return weft::Group::join(options);
}

void serve(const std::string& store) {
  torch::jit::Module module("Twice");
  module.define("def forward(self, x: Tensor) -> Tensor:\n  return x + x\n");
  weft::publish("twice", module);
  weft::publish("echo", weft::servable("echo(Tensor x) -> Tensor",
                                       [](weft::Values args) { return args.at(0); }));
  join(store, 0)->shutdown(120);
}

struct Floors {
  Times free;    // the processes where the system puts them
  Times across;  // on two cores
};

void print(const char* name, const Times& times, const Floors& floors) {
  std::printf(
      "\"%s\": {\"p50\": %.1f, \"p99\": %.1f, \"times_floor\": %.2f, \"times_across\": %.2f}", name,
      times.p50, times.p99, times.p50 / floors.free.p50, times.p50 / floors.across.p50);
}

void ask(const std::string& store, int count, const Floors& floors) {
  const auto group = join(store, 1);
  const at::Tensor x = at::ones({1});
  const auto call = [&](const char* name) {
    return measure(count, [&] { weft::rpcSync("server", name, {x}); });
  };
  for (const char* name : {"echo", "twice"})
    call(name);  // warm
  std::printf("{");
  print("raw Unix socket", floors.free, floors);
  std::printf(", ");
  print("raw Unix socket across cores", floors.across, floors);
  std::printf(", ");
  print("C++ code", call("echo"), floors);
  std::printf(", ");
  print("TorchScript module", call("twice"), floors);
  std::printf(", ");
  print("built-in operator",
        measure(count,
                [&] {
                  weft::rpcSync("server", "aten::add.Tensor", {x, x});
                }),
        floors);
  std::printf("}\n");
  group->shutdown(60);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 5000;
  const bool pinned = argc > 2 && std::string(argv[2]) == "pinned";
  const std::string store = "/tmp/weft-latency-" + std::to_string(::getpid());
  int code = 1;
  try {
    const Floors floors = {rawRoundTrip(count, false), rawRoundTrip(count, true)};
    const pid_t child = ::fork();
    if (pinned) pin(child == 0 ? 1 : 0);
    if (child == 0) {
      serve(store);
      return 0;
    }
    ask(store, count, floors);
    int status = 1;
    ::waitpid(child, &status, 0);
    code = status == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "latency: %s\n", error.what());
  }
  ::unlink(store.c_str());
  return code;
}
