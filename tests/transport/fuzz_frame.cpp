// Anything an authenticated peer may send after the handshake, cut in any way. The first two
// bytes choose how it is cut and what the receiver does; the rest is the stream.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/frame/frame_reader.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)

void require(bool condition) {
  if (!condition) std::abort();
}

Limits fuzzLimits() {
  Limits limits;
  limits.max_header_bytes = 100'000;  // more than the receive buffer, so that both ways are taken
  limits.max_buffers = 1000;
  limits.max_message_bytes = 1 << 20;
  return limits;
}
const Limits kLimits = fuzzLimits();

class Sink : private MessageHandler, private SharedMemoryHandler, private BulkHandler {
 public:
  explicit Sink(unsigned choice) : choice_(choice) {}
  // With shared memory and a bulk connection, or without.
  FrameHandlers handlers() {
    if (choice_ % 8 == 4) return {*this};
    return {*this, this, this};
  }

 private:
  Result<Disposition> onHeader(std::span<const std::byte> header,
                               std::span<const std::uint64_t> sizes,
                               std::vector<OwnedBuffer>& buffers) override {
    require(!pending_ && buffers.size() == sizes.size());
    require(header.size() <= kLimits.max_header_bytes && sizes.size() <= kLimits.max_buffers);
    std::uint64_t total = header.size();
    for (const std::uint64_t size : sizes)
      total += size;
    require(total <= kLimits.max_message_bytes);
    for (const std::byte byte : header)
      touched_ += static_cast<unsigned>(byte);
    if (choice_ % 8 == 1) return Disposition::kRefuse;
    if (choice_ % 8 == 2) return Disposition::kDiscard;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (buffers[i].owner != nullptr) {
        require(buffers[i].size == sizes[i]);
      } else {
        buffers[i] = make(sizes[i]);
      }
    }
    if (choice_ % 8 == 3 && !buffers.empty()) buffers.pop_back();  // a careless application
    pending_ = true;
    count_ = sizes.size();
    return Disposition::kAccept;
  }

  // An arena in which every place is there.
  Result<OwnedBuffer> arenaBuffer(const ArenaDescriptor& block, std::uint64_t size) override {
    require(block.reserved == 0);
    OwnedBuffer buffer = make(size);
    std::memset(buffer.data, 0x5A, size);
    return buffer;
  }

  // As many descriptors as are asked for.
  Result<OwnedBuffer> exportedBuffer(const ArenaDescriptor& place, std::uint64_t size) override {
    require(place.reserved == 0);
    if (choice_ % 8 == 5) return Error(ErrorCode::kSystem, "none to be had");
    OwnedBuffer buffer = make(size);
    std::memset(buffer.data, 0xA5, size);
    return buffer;
  }

  // Its half has come already, or comes when it is asked for again.
  Error readFromBulk(std::span<const iovec> into, std::shared_ptr<Arrivals> /*arrivals*/) override {
    for (const iovec& entry : into) {
      require(entry.iov_len > 0);
      if (entry.iov_base != nullptr) std::memset(entry.iov_base, 0x3C, entry.iov_len);
    }
    asked_ = 0;
    return Error::ok();
  }
  bool bulkArrived() override { return choice_ % 16 >= 8 || ++asked_ > 2; }

  Error onArenaFrame(FrameKind kind, std::span<const std::byte> body) override {
    require(body.size() == (kind == FrameKind::kArenaOffer ? ArenaOffer::kBytes : 0));
    return Error::ok();
  }

  Error onMessage(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) override {
    require(pending_ && buffers.size() == count_);
    pending_ = false;
    for (const std::byte byte : header)
      touched_ += static_cast<unsigned>(byte);
    for (const OwnedBuffer& buffer : buffers) {
      for (std::size_t i = 0; i < buffer.size; ++i)
        touched_ += static_cast<unsigned>(buffer.data[i]);
    }
    return Error::ok();
  }

  static OwnedBuffer make(std::uint64_t size) {
    std::shared_ptr<std::byte[]> memory(new std::byte[size]);
    return {memory.get(), size, memory};
  }

  unsigned choice_;
  bool pending_ = false;
  int asked_ = 0;
  std::size_t count_ = 0;
  unsigned touched_ = 0;  // reads every byte, so that a sanitizer sees them
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  Sink sink(data[1]);
  FrameReader reader(kLimits, sink.handlers());
  std::span<const std::uint8_t> input(data + 2, size - 2);
  while (!input.empty() && !reader.ended()) {
    std::array<iovec, 4> entries;
    const std::size_t used = reader.prepare(entries);
    require(used >= 1 && used <= entries.size());
    std::size_t left = std::min(piece, input.size());
    std::size_t fed = 0;
    for (std::size_t i = 0; i < used && left > 0; ++i) {
      require(entries[i].iov_len > 0);
      const std::size_t some = std::min(left, entries[i].iov_len);
      std::memcpy(entries[i].iov_base, input.data() + fed, some);
      fed += some;
      left -= some;
    }
    input = input.subspan(fed);
    if (reader.commit(fed)) break;
    while (reader.waiting()) {
      if (reader.resume()) return 0;
    }
  }
  return 0;
}
