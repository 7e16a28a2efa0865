// LayeredStream: the common part of streams that change bytes on their way over another stream,
// whose socket they use.
//
// Threads and failure are Stream's. Ownership: it shares the stream below.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/io/stream.h"

namespace weft::transport {

class LayeredStream : public Stream {
 public:
  void finishWriting() override { below_->finishWriting(); }
  void breakOff() override { below_->breakOff(); }
  int pollFd() const override { return below_->pollFd(); }
  std::uint64_t bytesCame() const noexcept override { return below_->bytesCame(); }
  const char* transportName() const override { return below_->transportName(); }

 protected:
  explicit LayeredStream(std::shared_ptr<Stream> below) : below_(std::move(below)) {}

  const std::shared_ptr<Stream> below_;
};

}  // namespace weft::transport
