// BulkReader: reads the halves of large messages from a bulk connection, one after the other, each
// straight to where it belongs.
//
// Threads: readSome(): the bulk thread; the rest: the endpoint's loop thread. Ownership: it borrows
// the stream and the count. Failure: readSome() returns it.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/base/arrivals.h"
#include "transport/bulk/bulk_turn.h"
#include "transport/io/iovec_cursor.h"
#include "transport/io/stream.h"

namespace weft::transport {

class BulkReader {
 public:
  // `received` counts bytes. `on_arrived`: as BulkConnection's.
  BulkReader(Stream& stream, std::atomic<std::uint64_t>& received,
             std::function<void()> on_arrived);

  // The next half goes `into` these; readSome() follows. As BulkConnection::read().
  void expect(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals);
  // Whether the half has arrived. If not, on_arrived is called when it has.
  bool arrived();
  // When this returns nobody reads into what expect() gave.
  void stop();

  // Reads what has come. The result: bulk_turn.h; 0: no half is expected.
  int readSome();

 private:
  enum class Arrival : std::uint8_t { kReading, kAwaited, kDone };

  IoResult readOnce(std::size_t& asked);

  Stream& stream_;
  std::atomic<std::uint64_t>& received_;
  const std::function<void()> on_arrived_;
  std::atomic<Arrival> arrival_{Arrival::kDone};

  // Held by the bulk thread while it reads, which never blocks, so that stop() can wait for it.
  std::mutex mutex_;  // guards what follows
  std::vector<iovec> in_;
  std::shared_ptr<Arrivals> arrivals_;
  IovecCursor places_;  // what of in_ is to come
};

}  // namespace weft::transport
