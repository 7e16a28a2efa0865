// How a thread that sends a frame writes it itself, also while its bytes still come
// (Message::filling).
//
// Threads: any, the one writer of the stream; no lock is held.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/bulk/bulk_connection.h"
#include "transport/frame/out_frame.h"
#include "transport/io/stream.h"

namespace weft::transport {

inline constexpr std::size_t kMostEntries = 1024;  // of one write: IOV_MAX

// Writes what the stream takes, and returns how many bytes that were. The loop thread writes the
// rest, and meets the error if there is one. `bulk`, if not null, carries the other half of the
// frame and is told of bytes that have come.
std::uint64_t writeNow(OutFrame& frame, Stream& stream, BulkConnection* bulk);

// Waits until all bytes of the frame are there.
void fill(OutFrame& frame, BulkConnection* bulk);

}  // namespace weft::transport
