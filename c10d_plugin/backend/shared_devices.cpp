#include "c10d_plugin/backend/shared_devices.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <map>
#include <vector>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/backend/store_key_value.h"
#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/engine/op_error.h"
#include "c10d_plugin/store/all_gather.h"
#include "c10d_plugin/store/epoch.h"
#include "transport/base/log.h"
#include "transport/io/address.h"

namespace weft::process_group {

namespace {

constexpr const char* kTitle = "weft: the first call with a CUDA tensor";

std::atomic<SharedDevices*> registered{nullptr};

// Where a rank's tensors are.
struct DevicePlace {
  std::string host;
  std::string address;
};

std::vector<DevicePlace> exchangePlaces(const DelegateSpec& spec, const DevicePlace& own) {
  const auto deadline = transport::deadlineAfter(spec.timeout);
  StoreKeyValue store(spec.store, collectives::groupText(spec.group_name));
  const auto epoch = collectives::agreeOnEpoch(store, spec.rank, spec.size, deadline);
  if (!epoch.ok()) throwAsTorch(kTitle, epoch.error());
  const auto said = collectives::storeAllGather(
      store, epoch.value() + "/device", collectives::joinTexts({own.host, own.address}), spec.rank,
      collectives::allRanks(spec.size), deadline);
  if (!said.ok()) throwAsTorch(kTitle, said.error());
  std::vector<DevicePlace> places;
  for (const std::string& text : said.value()) {
    const auto place = collectives::splitTexts(text);
    TORCH_CHECK(place && place->size() == 2, kTitle, ": rank ", places.size(),
                " left a malformed record in the Store");
    places.push_back({place->front(), place->back()});
  }
  return places;
}

// The first ranks found that share a device; empty: each has its own.
std::vector<int> sharers(const std::vector<DevicePlace>& places) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> by_device;
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    by_device[{places[rank].host, places[rank].address}].push_back(static_cast<int>(rank));
  for (const auto& [device, ranks] : by_device) {
    if (ranks.size() > 1) return ranks;
  }
  return {};
}

void checkOneHost(const std::vector<DevicePlace>& places, const std::vector<int>& sharing) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (!places[rank].host.empty() && places[rank].host == places.front().host) continue;
    C10_THROW_ERROR(
        DistBackendError,
        std::string(kTitle) + ": " + collectives::ranksAsText(sharing) + " share device " +
            places[static_cast<std::size_t>(sharing.front())].address + ", and rank " +
            std::to_string(rank) +
            " is on another host than rank 0. NCCL refuses a shared device, and Weft serves one "
            "only where all ranks are on one host: give each rank a device of its own");
  }
}

}  // namespace

void registerSharedDevices(SharedDevices* devices) { registered.store(devices); }

c10::intrusive_ptr<c10d::Backend> makeSharedDeviceBackend(const DelegateSpec& spec,
                                                          const std::string& interface) {
  SharedDevices* const devices = registered.load();
  if (devices == nullptr || spec.size == 1) return nullptr;
  const auto places =
      exchangePlaces(spec, {transport::hostIdentity(), devices->address(spec.device)});
  const std::vector<int> sharing = sharers(places);
  if (sharing.empty()) return nullptr;
  checkOneHost(places, sharing);
  if (spec.rank == 0) {
    transport::log(transport::LogLevel::kWarning,
                   "process group: " + collectives::ranksAsText(sharing) + " share device " +
                       places[static_cast<std::size_t>(sharing.front())].address +
                       "; CUDA tensors go through Weft's own collectives, not through NCCL");
  }
  auto options = c10::make_intrusive<WeftBackend::Options>(spec.timeout);
  options->interface = interface;
  auto meeting = c10::make_intrusive<WeftBackend>(
      c10::make_intrusive<c10d::PrefixStore>("meeting/", spec.store), spec.rank, spec.size,
      std::move(options));
  return devices->make(spec, std::move(meeting));
}

}  // namespace weft::process_group
