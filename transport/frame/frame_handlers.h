// The three interfaces to which a FrameReader gives what it finds in the bytes of one link.
//
// Threads: all are called from FrameReader::commit() and resume(), on the thread that reads.
// Failure: an Error that one of them returns is final for the reader and ends the link.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/base/arrivals.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/endpoint.h"
#include "transport/frame/frame.h"

namespace weft::transport {

class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  // The head of a frame, before anything else of it.
  virtual Error onFrameHead(const FrameHead& /*head*/) { return Error::ok(); }
  // As EndpointHandler::onHeader.
  virtual Result<Disposition> onHeader(std::span<const std::byte> header,
                                       std::span<const std::uint64_t> sizes,
                                       std::vector<OwnedBuffer>& buffers) = 0;
  // As EndpointHandler::arrivals.
  virtual std::shared_ptr<Arrivals> arrivals() { return nullptr; }
  // Instead of onHeader(): the message is too large and is discarded (Limits::skip_too_large).
  virtual Error onTooLarge(std::span<const std::byte> /*header*/, const Error& why) { return why; }
  // A data frame is whole. It was discarded, or onMessage() follows.
  virtual void onDataFrame(const FrameHead& /*head*/) {}
  // As EndpointHandler::onMessage.
  virtual Error onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) = 0;
};

class SharedMemoryHandler {
 public:
  virtual ~SharedMemoryHandler() = default;
  // A frame about the arena; `body` is an encoded ArenaOffer or empty.
  virtual Error onArenaFrame(FrameKind kind, std::span<const std::byte> body) = 0;
  // A buffer in the arena that the peer offered.
  virtual Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) = 0;
  // A buffer in memory whose descriptor came with the frame, as number `place.slot`. kSystem: this
  // process cannot map it, and the frame should come again without it.
  virtual Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor& place, std::uint64_t size) = 0;
};

class BulkHandler {
 public:
  virtual ~BulkHandler() = default;
  // Half of the frame's bytes come over the link's bulk connection: reads them `into` this memory,
  // which stays until the reader is gone or bulkArrived() is true. A single entry without memory:
  // skips them. Tells `arrivals`, unless it is null, of the bytes as they come.
  virtual Error readFromBulk(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) = 0;
  // Whether they have arrived. If not, FrameReader::resume() is called when they have.
  virtual bool bulkArrived() = 0;
};

// The handlers of one reader. Frames that need a handler which is null are protocol errors.
struct FrameHandlers {
  MessageHandler& messages;
  SharedMemoryHandler* shared_memory = nullptr;
  BulkHandler* bulk = nullptr;
};

}  // namespace weft::transport
