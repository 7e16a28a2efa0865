// CheckedStream: a byte stream in records with checksums, over a TCP connection. TCP's own checksum
// misses one damaged packet in 65,536, and says nothing of what is between two sockets. A bit that
// flips here is a broken connection (EBADMSG), which the session makes again.
//
//   head    = u32 bytes of the payload | u32 CRC-32C(seed, bytes, number of the record)
//   record  = head | payload | u32 CRC-32C(what the head's covers, payload)
//
// The number, which is not sent, finds records that were dropped, repeated or reordered. Large
// buffers get records of their own, so that they are read straight to their places, and long ones:
// reading costs up to twice the time when it is done in small pieces. The checksum comes last, so
// that the writer can make and send a long record piece by piece, while each is in the cache.
//
// What is written is copied as its checksum is taken: the program may change a tensor while it is
// sent. What is read is handed out only once its record has been found right.
//
// Threads, ownership and failure are Stream's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "transport/io/layered_stream.h"

namespace weft::transport {

class CheckedStream final : public LayeredStream {
 public:
  struct Seeds {
    std::uint32_t reads = 0;
    std::uint32_t writes = 0;
  };
  static constexpr std::size_t kMaxRecord = std::size_t{1} << 20;  // of payload

  // The two ends have each other's seeds.
  CheckedStream(std::shared_ptr<Stream> below, Seeds seeds);

  // A read that filled less than all of `into` is to be followed by one with the same places, from
  // what it filled on; a write that took less than all of `from` by one of the same bytes,
  // likewise.
  IoResult read(std::span<iovec> into) override;
  IoResult write(std::span<iovec> from, std::span<const int> fds) override;

 private:
  static constexpr std::size_t kHeadBytes = 8;
  static constexpr std::size_t kTailBytes = 4;

  // The places of one read or write, and how far they are done.
  class Places {
   public:
    explicit Places(std::span<const iovec> entries) : entries_(entries), left_(bytesOf(entries)) {}
    std::uint64_t left() const { return left_; }
    void skip(std::size_t bytes);
    std::size_t fillFrom(std::span<const std::byte> bytes);  // as much as there is room for
    std::size_t first(std::size_t bytes, std::span<iovec> out) const;  // entries used

   private:
    std::span<const iovec> entries_;
    std::uint64_t left_;
    std::size_t offset_ = 0;  // in the first of them
  };

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
  int openRecord(const Places& places);
  int readHere();
  int readInPlace(Places& places);
  IoResult readThrough(Places& places);
  int readTail();
  void wakeFor(std::size_t bytes);
  std::span<const std::byte> here() const { return {here_.get() + begin_, end_ - begin_}; }

  void seal(std::span<const iovec> from);
  std::size_t addPiece(Places& from, std::size_t at);
  static std::size_t recordLength(const Places& from);

  const Seeds seeds_;

  // The reading thread's.
  std::unique_ptr<std::byte[]> here_;
  std::size_t room_ = 0;   // of here_
  std::size_t begin_ = 0;  // of here_: what was read and not handed out
  std::size_t end_ = 0;
  State state_ = State::kHead;
  std::uint64_t records_read_ = 0;
  std::size_t length_ = 0;    // of the present record's payload; kVerified: of its rest
  std::size_t in_place_ = 0;  // bytes of it that are in the places, and not counted yet
  std::uint32_t found_ = 0;   // checksum of what came of it
  std::size_t wake_at_ = 1;

  // The writing thread's.
  struct Piece {
    std::size_t end = 0;      // in out_
    std::size_t payload = 0;  // bytes
  };
  std::unique_ptr<std::byte[]> out_;
  std::size_t sent_ = 0;  // of out_
  std::deque<Piece> pieces_;
  std::size_t to_seal_ = 0;     // bytes of the open record's payload that are not in a piece
  std::uint32_t checksum_ = 0;  // of the record, so far
  std::uint64_t records_written_ = 0;
};

}  // namespace weft::transport
