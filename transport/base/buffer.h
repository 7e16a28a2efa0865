// Memory that travels with a message.
//
// An OwnedBuffer names bytes and holds their owner. The transport does not copy the bytes to send
// them over a socket: it keeps `owner` until the peer has acknowledged the message (its connection
// may break before), and drops it on the loop thread or on a thread that sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft::transport {

struct OwnedBuffer {
  std::byte* data = nullptr;    // may be null only when size is 0
  std::size_t size = 0;         // bytes
  std::shared_ptr<void> owner;  // null: the bytes outlive the process (static memory)
};

// Filling: the bytes of a message's buffers that are not there yet when the message is sent. They
// come in order, from the first buffer's first byte on. The thread that sends waits for them, so
// all are there before send() returns.
class Filling {
 public:
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  virtual ~Filling() = default;
  // So many bytes are there; kAll: there is nothing to wait for any more. Any thread.
  virtual std::uint64_t filled() const noexcept = 0;
  // Returns when more than `bytes` are there. A failure must be said in the bytes themselves.
  virtual void waitBeyond(std::uint64_t bytes) noexcept = 0;

  void waitForAll() noexcept {
    for (std::uint64_t bytes = filled(); bytes != kAll; bytes = filled())
      waitBeyond(bytes);
  }
};

// What is sent and received: a small header, which the layer above gives a meaning, and buffers
// that are not copied.
struct Message {
  std::vector<std::byte> header;
  std::vector<OwnedBuffer> buffers;
  // Null: all bytes are there.
  std::shared_ptr<Filling> filling{};
  // Released when the message was written whole for the first time, or never will be.
  std::shared_ptr<void> until_written{};
  // The sender waits for its buffers, so the peer acknowledges the message as soon as it has it.
  bool wanted_back = false;
};

}  // namespace weft::transport
