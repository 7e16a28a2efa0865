// Whoever makes or drops device memory calls CUDA, which may take long: the loop thread, which asks
// DeviceTransfer for other things, does not wait for it.
#include "rpc_backend/codec/device_transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "tests/rpc_backend/agent_world.h"

namespace weft::rpc {
namespace {

// Another thread loses a peer meanwhile.
void expectNothingWaits(DeviceTransfer& devices) {
  auto lost = std::make_shared<std::promise<void>>();
  auto done = lost->get_future();
  std::thread([&devices, lost] {
    devices.onPeerLost(1);
    lost->set_value();
  }).detach();
  EXPECT_EQ(done.wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

class SlowMemory final : public DeviceMemory {
 public:
  SlowMemory() { expectNothingWaits(*devices); }
  ~SlowMemory() override { expectNothingWaits(*devices); }
  Export exportTensors(std::span<const at::Tensor>) override { return {}; }
  std::vector<at::Tensor> copyFrom(worker_id_t, std::span<const std::byte>,
                                   std::span<const DeviceTensorSpec>,
                                   std::shared_ptr<void>) override {
    return {};
  }
  void probe(worker_id_t, std::span<const std::byte>, std::int64_t) override {}
  void forget(worker_id_t) override { ++forgotten; }

  static DeviceTransfer* devices;
  static std::atomic<int> forgotten;
};

DeviceTransfer* SlowMemory::devices = nullptr;
std::atomic<int> SlowMemory::forgotten{0};

TEST(DeviceTransfer, NobodyWaitsForCuda) {
  testing::AgentWorld world;
  DeviceTransfer& devices = world.sender.devices();
  SlowMemory::devices = &devices;
  registerDeviceMemory(
      []() -> std::unique_ptr<DeviceMemory> { return std::make_unique<SlowMemory>(); });
  EXPECT_FALSE(devices.reaches(1, c10::Device(c10::kCUDA, 0), "worker1"));
  registerDeviceMemory(nullptr);
  devices.onPeerLost(1);
  EXPECT_TRUE(transport::eventually([] { return SlowMemory::forgotten == 1; }));
  devices.close();
}

}  // namespace
}  // namespace weft::rpc
