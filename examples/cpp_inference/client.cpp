// Calls the inference server from several threads and says how long that takes.
//
//   client [--name client] [--threads 4] [--requests 1000] [--rows 1] [--columns 64]
//
// The group comes from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

#include "flags.h"
#include "jit_ops/weft.h"

namespace {

using Clock = std::chrono::steady_clock;

// Microseconds of each request.
std::vector<double> ask(int requests, const at::Tensor& x) {
  std::vector<double> times;
  for (int i = 0; i < requests; ++i) {
    const auto start = Clock::now();
    const auto scores = weft::rpcSync<at::Tensor>("server", "classifier", {x});
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    if (scores.size(0) != x.size(0)) throw std::runtime_error("not one answer for each row");
  }
  return times;
}

void run(int argc, char** argv) {
  const int threads = flag(argc, argv, "--threads", 4);
  const int requests = flag(argc, argv, "--requests", 1000);
  const at::Tensor x = at::ones({flag(argc, argv, "--rows", 1), flag(argc, argv, "--columns", 64)});

  weft::JoinOptions options;
  options.name = flag(argc, argv, "--name", std::string("client"));
  const auto group = weft::Group::join(options);
  ask(50, x);  // the connection, and the server's first runs

  std::vector<std::vector<double>> parts(threads);
  std::vector<std::string> errors(threads);
  std::vector<std::thread> callers;
  const auto start = Clock::now();
  for (int t = 0; t < threads; ++t) {
    callers.emplace_back([&, t] {
      try {
        parts[t] = ask(requests, x);
      } catch (const std::exception& error) {
        errors[t] = error.what();
      }
    });
  }
  for (std::thread& caller : callers)
    caller.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  group->shutdown();

  std::vector<double> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  std::sort(all.begin(), all.end());
  std::printf("C++ client, %d threads: p50 %.0f us, p99 %.0f us, %.0f requests/s\n", threads,
              all[all.size() / 2], all[all.size() * 99 / 100],
              static_cast<double>(all.size()) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "client: %s\n", error.what());
    return 1;
  }
  return 0;
}
