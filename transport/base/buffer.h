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

// What is sent and what is received: a small header (the layer above gives it
// meaning) and buffers that move without being copied.
struct Message {
  std::vector<std::byte> header;
  std::vector<OwnedBuffer> buffers;
  // Released when the message was written whole for the first time, or will never be.
  std::shared_ptr<void> until_written{};
  // The sender waits for its buffers: the peer acknowledges the message as soon as it has it.
  bool wanted_back = false;
};

}  // namespace weft::transport
