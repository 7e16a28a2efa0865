// RecordReader: takes the records apart that come over a stream, and hands out what is in them.
//
// Bytes are handed out only once their record has been found right: that of small buffers is read
// to memory of the reader and copied to its places; a large one is read straight to its places.
//
// Threads: one at a time. Ownership: it borrows the stream. Failure: errno; EBADMSG: a record is
// not as it was written, and nothing more can be read.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/io/iovec_cursor.h"
#include "transport/io/stream.h"

namespace weft::transport {

class RecordReader {
 public:
  // `seed`: the writer's.
  RecordReader(Stream& below, std::uint32_t seed) noexcept : below_(below), seed_(seed) {}

  // As Stream::read(). A read that filled less than all of `into`, the reader's "places", is to be
  // followed by one with the same places, from what it filled on.
  IoResult read(std::span<iovec> into);
  // As Stream::holdsBytes().
  bool holdsBytes() const noexcept { return holds_bytes_; }

 private:
  enum class State : std::uint8_t {
    kHead,      // the next record's head is to come
    kHere,      // its payload comes to here_
    kInPlace,   // its payload comes to the reader's places
    kTail,      // its payload is in the reader's places, its checksum is to come
    kVerified,  // its payload is in here_, and right
  };

  bool largeComesNext() const;
  int fill();
  void makeRoom();
  int openRecord(const IovecCursor& places);
  int readHere();
  int readInPlace(IovecCursor& places);
  IoResult readThrough(IovecCursor& places);
  int readTail();
  std::span<const std::byte> here() const { return {here_.get() + begin_, end_ - begin_}; }

  Stream& below_;
  const std::uint32_t seed_;
  std::unique_ptr<std::byte[]> here_;
  std::size_t room_ = 0;   // of here_
  std::size_t begin_ = 0;  // of here_: what was read and not handed out
  std::size_t end_ = 0;
  State state_ = State::kHead;
  std::uint64_t records_ = 0;  // opened so far
  std::size_t length_ = 0;     // of the present record's payload; kVerified: of its rest
  // Bytes of it that are in the places already, and not counted as filled, because they are not
  // checked yet.
  std::size_t in_place_ = 0;
  std::uint32_t found_ = 0;   // checksum of what came of it
  bool holds_bytes_ = false;  // after the last read
};

}  // namespace weft::transport
