#include "transport/checksum/checked_stream.h"

#include <cerrno>
#include <utility>

namespace weft::transport {

CheckedStream::CheckedStream(std::shared_ptr<Stream> below, Seeds seeds)
    : LayeredStream(std::move(below)),
      reader_(*below_, seeds.reads),
      writer_(*below_, seeds.writes) {}

IoResult CheckedStream::write(std::span<iovec> from, std::span<const int> fds) {
  if (!fds.empty()) return {0, EOPNOTSUPP, false};
  return writer_.write(from);
}

}  // namespace weft::transport
