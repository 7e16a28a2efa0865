// DeviceArrivals: copies a message's large tensors to their devices piece by piece while their
// bytes come over a socket, so that reading the socket and copying overlap.
//
// A piece is copied by a worker, through pinned memory of torch's pool, on a stream that this takes
// for each device. The thread that reads the socket only counts bytes.
//
// Threads: add(): before any other; onBytes(): those that read; finish(): once, a worker, when all
// bytes have come. One thread at a time copies.
// Ownership: keeps the host tensors until they are copied. A message that never becomes whole drops
// this, and with it what was copied.
// Failure: a copy that fails ends the copying, and finish() throws its c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/base/arrivals.h"

namespace weft::rpc {

class DeviceArrivals final : public transport::Arrivals,
                             public std::enable_shared_from_this<DeviceArrivals> {
 public:
  // Runs a task on a worker; it may throw, and the pieces then wait for finish().
  using Run = std::function<void(std::function<void()>)>;

  explicit DeviceArrivals(Run run) : run_(std::move(run)) {}

  // A dense tensor of the host whose bytes are to come, and the CUDA device where it goes.
  void add(const at::Tensor& host, c10::Device device);

  void onBytes(const std::byte* begin, std::size_t size) noexcept override;
  // The tensors on their devices, in the order of add(). The devices' current streams wait for
  // their copies.
  std::vector<at::Tensor> finish();

 private:
  struct Arriving {
    at::Tensor host;
    c10::Device device;
    at::Tensor made;                   // on the device; undefined before its first piece
    std::vector<std::size_t> missing;  // bytes of each piece
  };
  struct Piece {
    Arriving* of;
    std::size_t begin;
    std::size_t size;
  };

  bool note(const std::byte* begin, std::size_t size);
  void copyOnWorker();
  void copyReady();
  void copy(const Piece& piece);
  c10::Stream streamOf(c10::Device device);

  const Run run_;
  std::map<const std::byte*, Arriving> arriving_;  // by the first byte
  std::vector<Arriving*> order_;

  std::mutex mutex_;  // guards `missing` and these
  std::condition_variable idle_;
  std::deque<Piece> ready_;
  bool asked_ = false;    // a worker will copy
  bool copying_ = false;  // a thread does

  // Used by the thread that copies.
  std::map<c10::DeviceIndex, c10::Stream> streams_;
  std::size_t left_ = 0;  // pieces that are not copied
  std::exception_ptr problem_;
};

}  // namespace weft::rpc
