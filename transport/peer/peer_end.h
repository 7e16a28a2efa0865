// PeerEnd: why a peer's life is over, and the telling of it to the endpoint's handler. What the
// handler throws is logged, so that the rest is told.
//
// Threads: the loop thread. Ownership: part of its Peer.
#pragma once

#include "transport/channel/frame_queue.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"

namespace weft::transport {

class PeerEnd {
 public:
  PeerEnd(const EndpointContext& context, const PeerInfo& peer)
      : context_(context), loss_{peer.rank, peer.name, {}} {}

  void set(Error reason) noexcept { loss_.reason = std::move(reason); }
  // Ok: it is not over.
  const Error& reason() const noexcept { return loss_.reason; }
  // Whether a life that ended so may be met again (Reunion), unless it was replaced.
  bool mayReturn() const noexcept;

  void tellUnsent(const FrameQueue::Frames& unsent);
  void tellLost();
  void tellDisplaced();

 private:
  template <typename Call>
  void tell(Call call);

  const EndpointContext& context_;
  PeerLoss loss_;  // made before it is needed, so that telling needs no memory
};

}  // namespace weft::transport
