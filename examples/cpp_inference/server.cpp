// An inference server without Python: loads a TorchScript file, publishes it and serves until all
// clients are done.
//
//   server --model model.pt [--worker server] [--name classifier] [--batch 16] [--delay-us 200]
//          [--threads 8]
//
// The group comes from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. --batch 0: each request
// runs alone.
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <exception>

#include "flags.h"
#include "jit_ops/weft.h"

namespace {

void serve(int argc, char** argv) {
  torch::jit::Module model = torch::jit::load(flag(argc, argv, "--model", std::string("model.pt")));
  model.eval();
  auto published = weft::servable(model, /*no_grad=*/true);
  const int batch = flag(argc, argv, "--batch", 16);
  if (batch > 0) {
    published = weft::batched(
        published, {.max_requests = static_cast<std::size_t>(batch),
                    .max_delay = std::chrono::microseconds(flag(argc, argv, "--delay-us", 200))});
  }
  const std::string name = flag(argc, argv, "--name", std::string("classifier"));
  weft::publish(name, published);

  weft::JoinOptions options;
  options.name = flag(argc, argv, "--worker", std::string("server"));
  options.rpc.num_worker_threads = flag(argc, argv, "--threads", 8);
  const auto group = weft::Group::join(options);
  std::printf("serving %s version 1: %s\n", name.c_str(), weft::published()[0].methods[0].c_str());
  std::fflush(stdout);
  group->shutdown();  // waits for the clients, and serves meanwhile
}

}  // namespace

int main(int argc, char** argv) {
  try {
    serve(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "server: %s\n", error.what());
    return 1;
  }
  return 0;
}
