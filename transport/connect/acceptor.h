// Acceptor: listens, and takes connections through the handshake. It refuses other users of this
// host on the Unix socket, unless EndpointOptions::accept_other_users. It accepts all others; if
// there is no room (Limits), an older connection is cut off.
//
// Connections in a handshake wait in WaitingRooms, so that strangers cannot crowd out members. A
// member of the group sends its hello at once, so silent connections have rooms of their own.
// Anyone who knows the group's name can send a hello, so known peers that come from where they
// listen have a room in which connections from elsewhere cannot displace them.
//
// Threads: counts(): any; the rest: the endpoint's loop thread.
// Failure: a connection that fails the handshake is cut off and counted. One that cannot be
// accepted waits (Listener).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/auth/handshake.h"
#include "transport/auth/handshake_runner.h"
#include "transport/base/os/unique_fd.h"
#include "transport/connect/endpoint_context.h"
#include "transport/connect/listener.h"
#include "transport/connect/waiting_room.h"
#include "transport/endpoint.h"

struct sockaddr_storage;

namespace weft::transport {

// A dialler that has proved who it is, and was admitted.
struct AuthenticatedPeer {
  Hello hello;
  SessionClaim claim;
  std::shared_ptr<Stream> stream;
};

class Acceptor {
 public:
  using Admitted = std::function<void(AuthenticatedPeer)>;
  // Where the peer of a rank listens; "": that is not known.
  using AddressOf = std::function<std::string(std::int32_t rank)>;

  // `admitted` is called for each dialler that `policy` admits, directly after its admit(), unless
  // the connection breaks first: admit() must leave a state that recovers by itself.
  Acceptor(const EndpointContext& context, AcceptPolicy& policy, AddressOf address_of,
           Admitted admitted);

  void listen(UniqueFd fd, const char* transport_name);
  // Stops listening and drops handshakes under way.
  void stop();

  // Any thread: fills in `stats.refused`.
  void counts(EndpointStats& stats) const;

 private:
  // The rooms for one kind of socket, so that neither kind crowds out the other.
  struct Rooms {
    Rooms();
    WaitingRoom silent;    // no hello yet; by origin
    WaitingRoom named;     // the hello was right; by the rank that it claims, and origin
    WaitingRoom expected;  // likewise, and a known peer from where it listens; by rank
    void clear();
    void leave(std::uint64_t id);
  };
  struct Source {
    bool is_unix;
    std::uint64_t number;  // a user's, or an address
  };

  void onAccepted(UniqueFd fd, bool is_unix, const sockaddr_storage& from);
  void onNamed(std::uint64_t id, const Source& source, std::int32_t rank);
  bool isExpected(const Source& source, std::int32_t rank) const;
  Rooms& roomsOf(const Source& source) { return source.is_unix ? unix_rooms_ : tcp_rooms_; }
  void onHandshake(std::uint64_t id, HandshakeOutcome outcome);
  void enter(WaitingRoom& room, std::uint64_t id, std::uint64_t source);
  void leave(std::uint64_t id);
  void count(RefusalCause cause) { ++refused_[static_cast<std::size_t>(cause)]; }
  void warnOnce(const Hello& hello, const std::string& why);

  const EndpointContext& context_;
  AcceptPolicy& policy_;
  const AddressOf address_of_;
  const Admitted admitted_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<std::uint64_t, std::unique_ptr<HandshakeRunner>> running_;
  Rooms unix_rooms_;
  Rooms tcp_rooms_;
  std::uint64_t next_id_ = 0;
  std::array<std::atomic<std::uint64_t>, kRefusalCauses.size()> refused_{};  // by RefusalCause
  bool warned_ = false;
};

}  // namespace weft::transport
