// A C++ worker with CUDA devices beside a Python one (test_cpp_client.py), with crossed device
// maps: calls what that one publishes at its second device, runs a model with a remote module
// there, and serves it a function in return. Each of twenty seeds delays the streams of both in
// another way.
//
//   cpp_client INIT_METHOD LIBWEFT_CUDA MODEL SECOND
//
// SECOND is the number of the second device: 0 where there is one only.
#include <ATen/ops/arange.h>
#include <dlfcn.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "jit_ops/weft.h"

#include "tests/support/waiting.h"

namespace {

constexpr int kSeeds = 20;
constexpr std::int64_t kNumel = 1000;

void expect(bool fine, const std::string& what) {
  if (!fine) throw std::runtime_error(what);
}

// What shares device memory with other processes, and torch's CUDA with it.
void load(const char* library) {
  if (::dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(::dlerror());
}

// Of the emulated devices.
void seed(std::int64_t number) {
  auto* const found = ::dlsym(RTLD_DEFAULT, "emulatedCudaSeed");
  if (found != nullptr)
    reinterpret_cast<void (*)(unsigned long)>(found)(static_cast<unsigned long>(number));
}

at::Tensor counted(c10::Device device) {
  return at::arange(kNumel, at::TensorOptions().dtype(at::kFloat).device(device));
}

// Late work on the current stream.
at::Tensor chain(at::Tensor x) {
  for (int step = 0; step < 4; ++step)
    x = x.mul(2).add(1);
  return x;
}

// 2x + 1 of what chain() gives, where the caller's map puts it.
void same(const at::Tensor& y, c10::Device device, const char* what) {
  expect(y.device() == device, std::string(what) + " came to " + y.device().str());
  const at::Tensor right = chain(counted(at::kCPU)).mul(2).add(1);
  expect(y.detach().cpu().equal(right), std::string(what) + ": a wrong number");
}

std::int64_t metric(const weft::Group& group, const std::string& name) {
  return std::stoll(group.metrics().at("agent.device_" + name));
}

void callPublished() {
  const c10::Device here(at::kCUDA, 0);
  const at::Tensor x = chain(counted(here));
  same(weft::rpcSync<at::Tensor>("python", "affine", {x}), here, "a call");
  const auto first = weft::rpcAsync("python", "affine", {x});
  const auto second = weft::rpcAsync("python", "plain", {x});
  same(weft::wait(first).toTensor(), here, "a scripted module's future");
  same(weft::wait(second).toTensor(), here, "a plain module's future");
}

// TorchScript gets tensors of the CPU from a remote module.
void runRemoteModule(torch::jit::Module& model) {
  const at::Tensor x = chain(counted(c10::Device(at::kCUDA, 0)));
  same(model.forward({x}).toTensor(), at::kCPU, "a remote module");
}

void waitForPublished(const std::string& name) {
  const auto published = [&] {
    for (const weft::PublishedInfo& info : weft::publishedBy("python"))
      if (info.name == name) return true;
    return false;
  };
  if (!weft::waitUntil(published, std::chrono::seconds(60), std::chrono::milliseconds(20)))
    throw std::runtime_error("the Python worker does not publish " + name);
}

// Until its arguments do not go through host memory any more.
void waitUntilLent(const weft::Group& group) {
  const auto lends = [&] {
    const auto staged = metric(group, "bytes_staged");
    callPublished();
    return metric(group, "bytes_staged") == staged;
  };
  expect(weft::waitUntil(lends, std::chrono::seconds(60)), "no tensor is lent");
}

void run(const std::string& init_method, const char* model_path, c10::Device second) {
  const c10::Device first(at::kCUDA, 0);
  weft::publish("seed", weft::servable("seed(int number) -> ()", [](weft::Values args) {
                  seed(args[0].toInt());
                  return at::IValue();
                }));
  weft::publish("chained",
                weft::servable("chained(Tensor x) -> Tensor", [second](weft::Values args) {
                  const at::Tensor x = args[0].toTensor();
                  expect(x.device() == second, "an argument is on another device");
                  return at::IValue(chain(x));
                }));
  weft::JoinOptions options;
  options.name = "cpp";
  options.rank = 1;
  options.world_size = 2;
  options.init_method = init_method;
  options.rpc.device_maps["python"] = {{first, second}, {second, first}};
  const auto group = weft::Group::join(options);
  waitForPublished("ready");
  torch::jit::Module model = torch::jit::load(model_path);
  waitUntilLent(*group);
  const auto before = metric(*group, "bytes_lent");
  for (int number = 0; number < kSeeds; ++number) {
    seed(number);
    weft::rpcSync("python", "seed", {number});
    callPublished();
    runRemoteModule(model);
  }
  const auto lent = metric(*group, "bytes_lent") - before;
  expect(lent >= kSeeds * 3 * kNumel * 4, "arguments went through host memory");
  std::printf("C++: %d seeds\n", kSeeds);
  group->shutdown(60);  // serves the other until it leaves
}

}  // namespace

int main(int /*argc*/, char** argv) {
  try {
    load(argv[2]);
    run(argv[1], argv[3], {at::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(argv[4]))});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_client: %s\n", error.what());
    return 1;
  }
  return 0;
}
