#include "rpc_backend/cuda/ipc_memory.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <type_traits>

namespace weft::rpc {

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;

// How many segments, and how many events, of one peer stay open. Of a peer with more, the oldest
// are opened again when they are used.
constexpr std::size_t kMostOpen = 1024;

std::vector<std::string> busIds() {
  std::vector<std::string> ids;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    std::array<char, 32> id{};
    C10_CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device));
    ids.emplace_back(id.data());
  }
  return ids;
}

// The index of an element that `is` finds, which is appended if there is none.
template <typename T, typename Is, typename Make>
std::size_t indexOf(std::vector<T>& all, const Is& is, const Make& make) {
  const auto found = std::find_if(all.begin(), all.end(), is);
  const auto index = static_cast<std::size_t>(found - all.begin());
  if (found == all.end()) all.push_back(make());
  return index;
}

// The segments that torch's allocator has given back to the driver so far.
std::uint64_t segmentsGivenBack() {
  static std::atomic<std::uint64_t> count{0};
  static const bool counts = [] {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& entry) {
      using Entry = std::decay_t<decltype(entry)>;
      if (entry.action_ == Entry::SEGMENT_FREE || entry.action_ == Entry::SEGMENT_UNMAP) ++count;
    });
    return true;
  }();
  static_cast<void>(counts);
  return count;
}

// What is exported must not be given back or written to before it is read.
struct Kept {
  std::vector<c10::Storage> storages;
  std::vector<std::shared_ptr<IpcEvents::Event>> events;
};

// Drops `owned` when all that the stream has been given so far is done.
void dropAfter(const CUDAStream& stream, const std::shared_ptr<void>& owned) {
  auto* const held = new std::shared_ptr<void>(owned);
  const auto drop = [](void* data) { delete static_cast<std::shared_ptr<void>*>(data); };
  const c10::cuda::CUDAGuard guard(stream.device_index());
  if (cudaLaunchHostFunc(stream, drop, held) == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaStreamSynchronize(stream));
  drop(held);
}

// Makes copies of a peer's tensors. Whatever happens, `borrowed` lives until the copies that were
// queued are done.
class Copies {
 public:
  explicit Copies(std::shared_ptr<void> borrowed) : borrowed_(std::move(borrowed)) {}
  ~Copies() {
    for (const CUDAStream& stream : streams_)
      dropAfter(stream, borrowed_);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  at::Tensor make(const DeviceTensorSpec& spec, void* data, c10::DeviceIndex device) {
    const auto options = at::TensorOptions().dtype(spec.dtype);
    at::Tensor made = at::empty_strided(spec.sizes, spec.strides, options.device(spec.device));
    const c10::Device source(c10::kCUDA, device);
    const at::Tensor theirs = at::for_blob(data, spec.sizes)
                                  .strides(spec.strides)
                                  .options(options.device(source))
                                  .target_device(source)
                                  .make_tensor();
    // Orders the streams of the two devices where they differ; ends on the target's stream.
    const CUDAStream stream = getCurrentCUDAStream(spec.device.index());
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end())
      streams_.push_back(stream);
    made.copy_(theirs, /*non_blocking=*/true);
    return made;
  }

 private:
  const std::shared_ptr<void> borrowed_;
  std::vector<CUDAStream> streams_;
};

const bool registered = [] {
  registerDeviceMemory(
      []() -> std::unique_ptr<DeviceMemory> { return std::make_unique<IpcMemory>(); });
  return true;
}();

}  // namespace

IpcMemory::IpcMemory() : bus_ids_(busIds()) {
  // A peer's memory may come before this process has any: torch's allocator, which opens it, has no
  // devices until then.
  at::globalContext().lazyInitDevice(c10::kCUDA);
}

DeviceMemory::Export IpcMemory::exportTensors(std::span<const at::Tensor> tensors) {
  IpcToken token;
  token.generation = segmentsGivenBack();
  auto kept = std::make_shared<Kept>();
  for (const at::Tensor& tensor : tensors) {
    const c10::Storage& storage = tensor.storage();
    const c10::DeviceIndex device = tensor.device().index();
    const std::string& bus_id = bus_ids_.at(static_cast<std::size_t>(device));
    const auto device_at = indexOf(
        token.devices, [&](const auto& known) { return known.bus_id == bus_id; },
        [&] {
          kept->events.push_back(events_->take(device));
          return IpcToken::Device{bus_id, kept->events.back()->handle};
        });
    // Allocations begin where storages do.
    const auto shared = c10::cuda::CUDACachingAllocator::shareIpcHandle(storage.mutable_data());
    const auto segment_at = indexOf(
        token.segments, [&](const auto& known) { return known.handle == shared.handle; },
        [&] {
          return IpcToken::Segment{static_cast<std::uint8_t>(device_at), shared.handle};
        });
    const auto* first = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto within = first - static_cast<const std::byte*>(storage.data());
    token.places.push_back({static_cast<std::uint32_t>(segment_at),
                            static_cast<std::uint64_t>(shared.offset + within)});
    kept->storages.push_back(storage);
  }
  for (const auto& taken : kept->events)
    taken->event.record(getCurrentCUDAStream(taken->event.device_index()));
  return {token.toBytes(), std::move(kept)};
}

c10::DeviceIndex IpcMemory::deviceOf(const std::string& bus_id) const {
  const auto found = std::find(bus_ids_.begin(), bus_ids_.end(), bus_id);
  TORCH_CHECK(found != bus_ids_.end(), "the device at PCI ", bus_id,
              " is not visible to this process (CUDA_VISIBLE_DEVICES)");
  return static_cast<c10::DeviceIndex>(found - bus_ids_.begin());
}

void IpcMemory::OfPeer::closeStale(std::uint64_t latest) {
  if (segments.size() > kMostOpen || events.size() > kMostOpen) *this = {};
  // What an earlier token names is kept by its sender, so it has its handle for itself.
  if (latest <= generation) return;
  segments.clear();
  generation = latest;
}

// All stale memory is closed before any thread opens new memory: torch's allocator, too, knows what
// is open by its handle.
IpcMemory::Opened IpcMemory::open(worker_id_t peer, const IpcToken& token) {
  Opened opened;
  const std::lock_guard lock(mutex_);
  OfPeer& known = peers_[peer];
  known.closeStale(token.generation);
  for (const auto& [bus_id, handle] : token.devices) {
    const c10::DeviceIndex device = deviceOf(bus_id);
    auto& event = known.events[handle];
    if (event == nullptr) {
      cudaIpcEventHandle_t raw{};
      TORCH_CHECK(handle.size() == sizeof(raw.reserved), "a token of device memory is malformed");
      std::memcpy(raw.reserved, handle.data(), sizeof(raw.reserved));
      event = std::make_shared<c10::cuda::CUDAEvent>(device, &raw);
    }
    opened.devices.push_back(device);
    opened.events.push_back(event);
  }
  for (const auto& [device_at, handle] : token.segments) {
    auto& segment = known.segments[handle];
    if (segment == nullptr) {
      const c10::cuda::CUDAGuard guard(opened.devices[device_at]);
      segment = c10::cuda::CUDACachingAllocator::getIpcDevPtr(handle);
    }
    opened.segments.push_back(segment);
  }
  return opened;
}

std::vector<at::Tensor> IpcMemory::copyFrom(worker_id_t peer, std::span<const std::byte> bytes,
                                            std::span<const DeviceTensorSpec> wanted,
                                            std::shared_ptr<void> borrowed) {
  const IpcToken token = IpcToken::fromBytes(bytes);
  TORCH_CHECK(token.places.size() == wanted.size(), "a token of device memory names ",
              token.places.size(), " tensors, and its message ", wanted.size());
  // Ends after `opened`: once its memory is given back, the sender may use the handle for other
  // memory.
  Copies copies(std::move(borrowed));
  const Opened opened = open(peer, token);
  // A copy between devices runs on the stream of the source. Where the call has none, one of the
  // pool: the default stream is the user's.
  std::vector<CUDAStream> sources;
  for (const c10::DeviceIndex device : opened.devices) {
    const bool has_own = std::any_of(wanted.begin(), wanted.end(), [&](const auto& spec) {
      return spec.device.index() == device;
    });
    if (!has_own) sources.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
  }
  const c10::cuda::CUDAMultiStreamGuard guard(sources);
  for (std::size_t i = 0; i < opened.events.size(); ++i)
    opened.events[i]->block(getCurrentCUDAStream(opened.devices[i]));
  std::vector<at::Tensor> made;
  made.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [segment, offset] = token.places[i];
    TORCH_CHECK(wanted[i].device.is_cuda(), "a tensor in device memory was sent to ",
                wanted[i].device);
    auto* const data = static_cast<std::byte*>(opened.segments[segment].get()) + offset;
    made.push_back(copies.make(wanted[i], data, opened.devices[token.segments[segment].device]));
  }
  return made;
}

void IpcMemory::probe(worker_id_t peer, std::span<const std::byte> bytes, std::int64_t expected) {
  const IpcToken token = IpcToken::fromBytes(bytes);
  TORCH_CHECK(token.devices.size() == 1 && token.places.size() == 1,
              "a token of device memory is malformed");
  const c10::DeviceIndex device = deviceOf(token.devices.front().bus_id);
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool(false, device));
  const DeviceTensorSpec number{{}, {}, at::kLong, c10::Device(c10::kCUDA, device)};
  const auto read = copyFrom(peer, bytes, {&number, 1}, nullptr);
  TORCH_CHECK(read.front().item<std::int64_t>() == expected,
              "what it reads there is not what the sender wrote");
}

void IpcMemory::forget(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  peers_.erase(peer);
}

}  // namespace weft::rpc
