// MessageParser: makes an IncomingMessage from its header. It goes through the header and the
// message's buffers side by side, because the header says which buffer is next.
//
// A total parser: any header gives a message or a named error; each length is checked before memory
// is taken. Threads: the loop thread. Failure: parse() returns kProtocol; it throws if there is no
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/wire/wire_reader.h"

namespace weft::rpc {

class MessageParser {
 public:
  // As IncomingMessage::begin().
  MessageParser(std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
                std::vector<transport::OwnedBuffer>& buffers, transport::WarmPool* pool);
  // Call it once.
  transport::Result<std::shared_ptr<IncomingMessage>> parse();

 private:
  transport::Error readHead();
  transport::Error readPayload();
  transport::Error readTensor();
  transport::Error readSparse(const TensorMeta& meta);
  // The next buffer holds the tensor's bytes already (shared memory), or gets memory for them.
  void readBuffer(const TensorMeta& meta);
  transport::Error readStagedByte();
  transport::Error readEnd();
  // `memory`: where the tensor's bytes are, or will be; without data it gets memory of its own.
  static IncomingMessage::Slot makeSlot(const TensorMeta& meta,
                                        const transport::OwnedBuffer& memory);

  WireReader reader_;
  WireHeader head_;
  const std::span<const std::uint64_t> sizes_;
  std::vector<transport::OwnedBuffer>& buffers_;
  transport::WarmPool* const pool_;
  const std::shared_ptr<IncomingMessage> in_{new IncomingMessage()};
  std::size_t next_ = 0;  // of the buffers
};

}  // namespace weft::rpc
