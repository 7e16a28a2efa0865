#include "transport/tls/tls_bio.h"

#include <openssl/bio.h>

#include <cerrno>
#include <new>
#include <span>

#include "transport/base/check.h"
#include "transport/base/thrown.h"

namespace weft::transport {

struct TlsBio::Callbacks {
  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* const method =
          ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft stream");
      WEFT_CHECK(method != nullptr, "OpenSSL has memory for a few pointers");
      ::BIO_meth_set_read(method, &Callbacks::read);
      ::BIO_meth_set_write(method, &Callbacks::write);
      ::BIO_meth_set_ctrl(method, &Callbacks::control);
      return method;
    }();
    return made;
  }

  static int read(BIO* bio, char* into, int room) {
    auto& self = *static_cast<TlsBio*>(::BIO_get_data(bio));
    ::BIO_clear_retry_flags(bio);
    if (self.ended_ || self.read_error_ != 0) return -1;
    if (!self.drained_) {
      iovec target{into, static_cast<std::size_t>(room)};
      const IoResult result = self.below_.read(std::span(&target, 1));
      self.drained_ = result.count < static_cast<std::size_t>(room);
      if (result.count > 0) return static_cast<int>(result.count);
      self.ended_ = result.end;
      if (result.error != EAGAIN) self.read_error_ = result.error;
      if (result.error != EAGAIN) return -1;
    }
    ::BIO_set_retry_read(bio);
    return -1;
  }

  static int write(BIO* bio, const char* from, int count) {
    auto& self = *static_cast<TlsBio*>(::BIO_get_data(bio));
    ::BIO_clear_retry_flags(bio);
    if (!self.writes_) return count;
    const auto* const bytes = reinterpret_cast<const std::byte*>(from);
    if (thrownBy([&] { self.out_.insert(self.out_.end(), bytes, bytes + count); })) return -1;
    return count;
  }

  // NOLINTNEXTLINE(google-runtime-int): OpenSSL's type
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_FLUSH) return 1;
    if (command == BIO_CTRL_EOF) return static_cast<TlsBio*>(::BIO_get_data(bio))->ended_;
    return 0;
  }
};

bio_st* TlsBio::make() {
  BIO* const bio = ::BIO_new(Callbacks::method());
  if (bio == nullptr) throw std::bad_alloc();
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  return bio;
}

int TlsBio::flush() {
  if (!unsent()) return 0;
  iovec rest{out_.data() + sent_, out_.size() - sent_};
  const IoResult result = below_.write(std::span(&rest, 1), {});
  sent_ += result.count;
  return result.error != 0 || !unsent() ? result.error : EAGAIN;
}

}  // namespace weft::transport
