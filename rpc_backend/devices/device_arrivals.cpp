#include "rpc_backend/devices/device_arrivals.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <new>
#include <utility>

#include "rpc_backend/devices/device_copy.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

void DeviceArrivals::add(const at::Tensor& host, c10::Device device) {
  const std::size_t bytes = host.nbytes();
  std::vector<std::size_t> missing((bytes + kChunk - 1) / kChunk, kChunk);
  missing.back() = bytes - (missing.size() - 1) * kChunk;
  left_ += missing.size();
  const auto* first = static_cast<const std::byte*>(host.const_data_ptr());
  const auto [added, fresh] =
      arriving_.emplace(first, Arriving{host, device, {}, std::move(missing)});
  TORCH_INTERNAL_ASSERT(fresh);
  order_.push_back(&added->second);
}

bool DeviceArrivals::note(const std::byte* begin, std::size_t size) {
  auto found = arriving_.upper_bound(begin);
  if (found == arriving_.begin()) return false;
  --found;
  auto& [first, arriving] = *found;
  auto at = static_cast<std::size_t>(begin - first);
  const std::size_t bytes = arriving.host.nbytes();
  if (at >= bytes) return false;
  const std::lock_guard lock(mutex_);
  for (const std::size_t end = std::min(at + size, bytes); at < end;) {
    const std::size_t piece = at / kChunk;
    const std::size_t piece_end = std::min((piece + 1) * kChunk, bytes);
    const std::size_t here = std::min(end, piece_end) - at;
    std::size_t& missing = arriving.missing[piece];
    missing -= here;
    if (missing == 0) ready_.push_back({&arriving, piece * kChunk, piece_end - piece * kChunk});
    at += here;
  }
  return !ready_.empty() && !copying_ && !std::exchange(asked_, true);
}

// Without memory for a task the pieces wait for finish().
void DeviceArrivals::onBytes(const std::byte* begin, std::size_t size) noexcept {
  static_cast<void>(transport::thrownBy([&] {
    if (note(begin, size)) run_([self = shared_from_this()] { self->copyOnWorker(); });
  }));
}

void DeviceArrivals::copyOnWorker() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = false;
    if (std::exchange(copying_, true)) return;
  }
  copyReady();
}

// By the one thread that has set copying_.
void DeviceArrivals::copyReady() {
  while (true) {
    Piece piece{};
    {
      const std::lock_guard lock(mutex_);
      if (ready_.empty()) {
        copying_ = false;
        idle_.notify_all();
        return;
      }
      piece = ready_.front();
      ready_.pop_front();
    }
    if (problem_) continue;
    try {
      copy(piece);
      --left_;
    } catch (...) {
      problem_ = std::current_exception();
    }
  }
}

void DeviceArrivals::copy(const Piece& piece) {
  Arriving& arriving = *piece.of;
  const at::Tensor& host = arriving.host;
  const c10::StreamGuard guard(streamOf(arriving.device));
  if (!arriving.made.defined()) {
    arriving.made =
        at::empty_strided(host.sizes(), host.strides(), host.options().device(arriving.device));
  }
  copyPiece(host, arriving.made, piece.begin, piece.size);
}

c10::Stream DeviceArrivals::streamOf(c10::Device device) {
  const auto found = streams_.find(device.index());
  if (found != streams_.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams_.emplace(device.index(), guard.getStreamFromGlobalPool(device)).first->second;
}

std::vector<at::Tensor> DeviceArrivals::finish() {
  {
    // Not for a worker that was asked to: it may never come.
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !copying_; });
    copying_ = true;
  }
  copyReady();
  if (problem_) std::rethrow_exception(problem_);
  if (left_ > 0) throw std::bad_alloc();  // there was no memory to note a piece
  for (const auto& [index, stream] : streams_) {
    const c10::impl::VirtualGuardImpl guard(stream.device_type());
    c10::Event copied(stream.device_type());
    copied.record(stream);
    copied.block(guard.getStream(stream.device()));
  }
  std::vector<at::Tensor> made;
  for (Arriving* const arriving : order_) {
    const c10::impl::VirtualGuardImpl guard(arriving->device.type());
    arriving->made.record_stream(guard.getStream(arriving->device));
    made.push_back(std::move(arriving->made));
  }
  return made;
}

}  // namespace weft::rpc
