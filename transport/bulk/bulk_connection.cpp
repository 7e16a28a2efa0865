#include "transport/bulk/bulk_connection.h"

#include <cerrno>
#include <utility>

#include "transport/base/thrown.h"

namespace weft::transport {

std::shared_ptr<BulkConnection> BulkConnection::open(EventLoop& loop,
                                                     std::shared_ptr<Stream> stream,
                                                     std::shared_ptr<BulkCounts> counts,
                                                     Events events) {
  std::shared_ptr<BulkConnection> bulk(
      new BulkConnection(loop, std::move(stream), std::move(counts), std::move(events)));
  loop.post([bulk] {
    if (bulk->cut_.load()) return;
    bulk->poll_.emplace(bulk->loop_, bulk->stream_->pollFd(),
                        [raw = bulk.get()](Poll::Ready ready) { raw->onReady(ready); });
  });
  return bulk;
}

BulkConnection::BulkConnection(EventLoop& loop, std::shared_ptr<Stream> stream,
                               std::shared_ptr<BulkCounts> counts, Events events)
    : loop_(loop),
      stream_(std::move(stream)),
      counts_(std::move(counts)),
      on_broken_(std::move(events.on_broken)),
      reader_(*stream_, counts_->received, std::move(events.on_arrived)),
      writer_(*stream_, counts_->sent) {}

void BulkConnection::wake() {
  if (writer_.noteDue()) post(&BulkConnection::writeSome);
}

void BulkConnection::read(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) {
  reader_.expect(into, std::move(arrivals));
  post(&BulkConnection::readSome);
}

void BulkConnection::cut() {
  cut_.store(true);
  stream_->breakOff();
  reader_.stop();
  writer_.stop();
  loop_.post([self = shared_from_this()] { self->poll_.reset(); });
}

void BulkConnection::post(void (BulkConnection::*step)()) {
  // Without memory for it the step is never done: the peer finds the connection broken, and the
  // link is given up.
  if (thrownBy([&] { loop_.post([self = shared_from_this(), step] { self->guarded(step); }); }))
    stream_->breakOff();
}

// --- the bulk thread ---

void BulkConnection::onReady(Poll::Ready ready) {
  // A broken stream is found by reading or writing it.
  if (ready.readable || ready.error != 0) guarded(&BulkConnection::readSome);
  if (ready.writable || ready.error != 0) guarded(&BulkConnection::writeSome);
  // Not broken, and nothing would tell when it is ready.
  if (ready.error != 0 && (want_read_ || want_write_)) fail(ready.error);
}

// Bytes that were moved and not counted are lost with what was thrown.
void BulkConnection::guarded(void (BulkConnection::*step)()) {
  if (thrownBy([&] { (this->*step)(); })) fail(ENOMEM);
}

void BulkConnection::readSome() {
  const int error = reader_.readSome();
  const bool more = error == EAGAIN;
  if (error != 0 && !more) return fail(error == ENODATA ? 0 : error);
  want(more, want_write_);
  if (more && stream_->holdsBytes()) post(&BulkConnection::readSome);
}

void BulkConnection::writeSome() {
  const int error = writer_.writeSome();
  const bool more = error == EAGAIN;
  if (error != 0 && !more) return fail(error);
  want(want_read_, more);
}

void BulkConnection::want(bool readable, bool writable) {
  want_read_ = readable;
  want_write_ = writable;
  if (poll_) poll_->want(readable, writable);
}

void BulkConnection::fail(int error) {
  want(false, false);
  if (!cut_.load() && !std::exchange(broken_, true)) on_broken_(error);
}

}  // namespace weft::transport
