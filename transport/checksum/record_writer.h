// RecordWriter: makes records of what is written, and sends them over a stream.
//
// Bytes are copied as their checksum is taken: the program may change a tensor while it is sent.
// Large buffers get records of their own, so that they can be read straight to their places, and
// long ones: reading costs up to twice the time when it is done in small pieces.
//
// Threads: one at a time. Ownership: it borrows the stream. Failure: errno, of the stream.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/io/iovec_cursor.h"
#include "transport/io/sealed_pieces.h"
#include "transport/io/stream.h"

namespace weft::transport {

class RecordWriter {
 public:
  // `seed`: the reader's.
  RecordWriter(Stream& below, std::uint32_t seed) : below_(below), seed_(seed) {}

  // As Stream::write(), without descriptors. A write that took less than all of `from` is to be
  // followed by one of the same bytes, from what it took on.
  IoResult write(std::span<const iovec> from);

 private:
  void seal(std::span<const iovec> from);
  std::size_t addPiece(IovecCursor& from, std::size_t at);
  static std::size_t recordLength(const IovecCursor& from);

  Stream& below_;
  const std::uint32_t seed_;
  std::unique_ptr<std::byte[]> out_;
  std::size_t sent_ = 0;        // of out_
  SealedPieces pieces_;         // in out_
  std::uint64_t records_ = 0;   // begun so far
  std::size_t to_seal_ = 0;     // bytes of the open record's payload that are not in a piece
  std::uint32_t checksum_ = 0;  // of the record, so far
};

}  // namespace weft::transport
