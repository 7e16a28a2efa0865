#include "transport/channel/caller_write.h"

#include <array>
#include <cerrno>
#include <span>

#include "transport/base/thrown.h"

namespace weft::transport {

namespace {

void awaitBytes(OutFrame& frame, BulkConnection* bulk) {
  frame.awaitBytes();
  if (bulk != nullptr) bulk->wake();
}

}  // namespace

void awaitAllBytes(OutFrame& frame, BulkConnection* bulk) {
  while (frame.filling() != nullptr)
    awaitBytes(frame, bulk);
}

std::uint64_t writeNow(OutFrame& frame, Stream& stream, BulkConnection* bulk) {
  std::uint64_t written = 0;
  while (frame.left() > 0) {
    std::array<iovec, kIovMax> entries;
    const std::size_t used = frame.gather(entries);
    IoResult result{0, EAGAIN, false};
    const auto write = [&] {
      if (used > 0) result = stream.write(std::span(entries).first(used), frame.fdsToSend());
    };
    if (thrownBy(write)) {
      stream.breakOff();  // what was written is unknown: the next stream gets it again
      break;
    }
    if (result.error == EAGAIN && frame.filling() != nullptr) {
      awaitBytes(frame, bulk);
      continue;
    }
    if (result.error != 0) break;
    frame.advance(result.count);
    written += result.count;
  }
  awaitAllBytes(frame, bulk);  // the loop thread does not wait for bytes
  return written;
}

}  // namespace weft::transport
