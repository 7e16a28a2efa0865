// TlsBio: what OpenSSL reads from and writes to where it expects a socket. It reads from another
// stream, and what it writes is kept until flush() sends it over that stream.
//
// Threads: the reading thread's and the writing thread's members share nothing; setWrites() and
// what OpenSSL calls need the lock that guards the SSL object. Ownership: it borrows the stream,
// and the BIO borrows it. Failure: errno; it throws nothing into OpenSSL, which is C.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/io/stream.h"

struct bio_st;

namespace weft::transport {

class TlsBio {
 public:
  explicit TlsBio(Stream& below) : below_(below) {}
  TlsBio(const TlsBio&) = delete;
  TlsBio& operator=(const TlsBio&) = delete;

  // For one SSL object, which frees it. Throws std::bad_alloc.
  bio_st* make();
  // Whether what OpenSSL writes is to be sent: else it is dropped.
  void setWrites(bool writes) noexcept { writes_ = writes; }

  // --- the reading thread ---
  void beginRead() noexcept { drained_ = false; }
  // The stream has nothing more since beginRead().
  bool drained() const noexcept { return drained_; }
  bool ended() const noexcept { return ended_; }
  int readError() const noexcept { return read_error_; }  // errno

  // --- the writing thread ---
  // Sends what it can; errno, EAGAIN if something is left.
  int flush();
  bool unsent() const noexcept { return sent_ < out_.size(); }
  std::size_t written() const noexcept { return out_.size(); }  // bytes since clear()
  std::size_t sent() const noexcept { return sent_; }           // of them
  void clear() noexcept {
    out_.clear();
    sent_ = 0;
  }

 private:
  struct Callbacks;  // what OpenSSL calls

  Stream& below_;
  bool writes_ = true;
  bool drained_ = false;
  bool ended_ = false;
  int read_error_ = 0;
  std::vector<std::byte> out_;
  std::size_t sent_ = 0;
};

}  // namespace weft::transport
