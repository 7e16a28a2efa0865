// ArenaView: the receiver's end of a SharedArena. It maps the memory that a peer offered and lends
// blocks of it out as buffers.
//
// The peer is authenticated, but not trusted: the memory must be sealed against shrinking (else a
// touch of it could end this process), and every descriptor is checked. The peer can still change
// bytes that it sent; whoever parses them copies them first.
//
// Threads: lend(), and the release of a block when the last user of its buffer goes: any.
// Ownership: lent buffers keep the mapping, also when the peer is lost or dead. A forked child
// releases nothing: the memory is the parent's, who may let it be reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/arena/arena_layout.h"
#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/base/fork_guard.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {

class ArenaView : public std::enable_shared_from_this<ArenaView> {
 public:
  // Maps what `offer` announced. kProtocol: the offer breaks the protocol, the link should be
  // closed. Any other error: it cannot be mapped here; the offer should be refused.
  static Result<std::shared_ptr<ArenaView>> open(const ArenaOffer& offer, const UniqueFd& fd,
                                                 std::uint64_t max_bytes);
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  // Whether this is the memory that `offer` announces.
  bool isOf(const ArenaOffer& offer) const noexcept { return offer_.magic == offer.magic; }
  // The block that a frame names; kProtocol when it names none.
  Result<OwnedBuffer> lend(const ArenaDescriptor& block, std::uint64_t size);

 private:
  ArenaView(std::byte* base, const ArenaOffer& offer) : base_(base), offer_(offer) {}

  std::byte* const base_;
  const ArenaOffer offer_;
  const ForkGuard fork_guard_;
};

}  // namespace weft::transport
