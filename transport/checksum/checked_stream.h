// CheckedStream: a byte stream in records with checksums (record.h), over a TCP connection. TCP's
// own checksum misses one damaged packet in 65,536, and says nothing of what is between two
// sockets. A bit that flips here is a broken connection (EBADMSG), which the session makes again.
//
// Threads, ownership and failure are Stream's. A read or write that did less than all is to be
// followed by one that goes on with the same places or bytes.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "transport/checksum/record_reader.h"
#include "transport/checksum/record_writer.h"
#include "transport/io/layered_stream.h"

namespace weft::transport {

class CheckedStream final : public LayeredStream {
 public:
  struct Seeds {
    std::uint32_t reads = 0;
    std::uint32_t writes = 0;
  };

  // The two ends have each other's seeds.
  CheckedStream(std::shared_ptr<Stream> below, Seeds seeds)
      : LayeredStream(std::move(below)),
        reader_(*below_, seeds.reads),
        writer_(*below_, seeds.writes) {}

  IoResult read(std::span<iovec> into) override { return reader_.read(into); }
  IoResult write(std::span<iovec> from, std::span<const int> fds) override {
    return fds.empty() ? writer_.write(from) : IoResult{0, EOPNOTSUPP, false};
  }
  bool holdsBytes() const override { return reader_.holdsBytes(); }

 private:
  RecordReader reader_;
  RecordWriter writer_;
};

}  // namespace weft::transport
