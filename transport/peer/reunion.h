// Reunion: dials lost peers until they answer (EndpointOptions::reunite). A process that was
// suspended, or whose host was out of reach, is lost but may live. Then the two begin a new
// session, which has none of the old one's frames.
//
// Both sides dial, because perhaps only one of them can be reached, or has admitted a successor of
// the other; the lower rank begins sooner. The side that is dialled admits the other one
// (Admission). Until then the peer stays lost, and sends to it fail at once. Dialling ends when
// another peer has the lost one's place here, which may be its successor or the same life again, or
// when the lost one answers that a successor of this process has its place there.
//
// Threads: the endpoint's loop thread. Failure: none; it tries again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "transport/connect/acceptor.h"
#include "transport/connect/connector.h"
#include "transport/connect/endpoint_context.h"
#include "transport/io/timer.h"
#include "transport/peer/peer_table.h"

namespace weft::transport {

class Reunion {
 public:
  // `met`: the lost peer has answered; it is still lost here.
  using Met = std::function<void(AuthenticatedPeer)>;

  Reunion(EndpointContext& context, PeerTable& peers, Met met)
      : context_(context), peers_(peers), met_(std::move(met)) {}

  // The peer of that rank is finished.
  void begin(std::int32_t rank);
  // Another peer has its rank: stops dialling the lost one.
  void end(std::int32_t rank) { attempts_.erase(rank); }
  void stop();

 private:
  struct Attempt {
    std::shared_ptr<Peer> lost;
    std::chrono::milliseconds pause{0};
    std::unique_ptr<Timer> timer;
    std::unique_ptr<Connector> connector;
  };

  void dial(std::int32_t rank);
  void dialLater(std::int32_t rank);
  void onDialled(std::int32_t rank, Connector::Outcome outcome);

  EndpointContext& context_;
  PeerTable& peers_;
  const Met met_;
  bool stopped_ = false;
  std::unordered_map<std::int32_t, Attempt> attempts_;
};

}  // namespace weft::transport
