// HostStaging: copies the tensors of one message from CUDA devices to pinned host memory, while the
// first of them are being sent.
//
// Tensors of up to kPacked bytes are gathered on their device and copied as one block. The others
// are copied in chunks, one behind the other, on the devices' current streams; each chunk may be
// sent as soon as it is there (transport::Filling). A chunk is waited for by its event: no device
// and no stream is ever synchronised, and the thread that sends is the only one that waits.
//
// Pinned memory: that of the message, from torch's pool, until the receiver has acknowledged it,
// because a connection that breaks has it sent again.
//
// Threads: one at a time; filled(): any. Ownership: the tensors are kept until they are copied, or
// the message is given up. Copies that are still queued by then end in pinned memory that nobody
// reads; torch's pool does not reuse it before they have ended.
// Failure: add() to awaitFirst() throw c10::Error. A copy that fails later fails its message at the
// receiver: the byte at whole() then stays 0.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "transport/base/buffer.h"

namespace weft::rpc {

class HostStaging final : public transport::Filling {
 public:
  // A dense tensor on a CUDA device; its bytes on the host will be bytes(i), i from 0 on.
  void add(const at::Tensor& dense);
  bool empty() const noexcept { return tensors_.empty(); }
  // Queues all copies.
  void begin();
  // Waits until the devices have made the tensors and the packed ones are here. True: all are here;
  // else locate() and a send with this as its message's filling must follow.
  bool awaitFirst();
  transport::OwnedBuffer bytes(std::size_t index) const { return host_.at(index); }

  // The buffers of the message, which has the tensors in the order in which they were added.
  void locate(std::span<const transport::OwnedBuffer> buffers);
  // One byte, which is to be the message's last: 1 when all copies have succeeded.
  std::byte* whole() noexcept { return &whole_; }

  std::uint64_t filled() const noexcept override { return filled_.load(); }
  void waitBeyond(std::uint64_t bytes) noexcept override;

 private:
  static constexpr std::size_t kPacked = std::size_t{64} << 10;

  // Copies that one event follows.
  struct Step {
    c10::Event done;
    const std::byte* end = nullptr;  // of what is there with it
    std::uint64_t filled = 0;        // the same, in bytes of the message's buffers
  };
  void pack(c10::Device device);
  void copyInChunks(std::size_t index);
  void record(std::deque<Step>& steps, c10::Device device, const std::byte* end);

  std::vector<at::Tensor> tensors_;
  std::vector<transport::OwnedBuffer> host_;  // of the tensors
  std::deque<Step> first_;
  std::deque<Step> steps_;
  std::uint64_t bytes_in_steps_ = 0;
  std::atomic<std::uint64_t> filled_{0};
  std::byte whole_{0};
};

}  // namespace weft::rpc
