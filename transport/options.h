// Every option of an Endpoint, with its unit and default. Limits that a deployment may want to
// tighten are options, not constants.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/auth/auth_key.h"
#include "transport/auth/encryption.h"
#include "transport/memory/pages.h"
#include "transport/memory/warm_pool.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {

// What a peer may make this process hold. Checked before memory is taken.
struct Limits {
  std::size_t max_header_bytes = std::size_t{16} << 20;
  std::uint32_t max_buffers = 1U << 20;
  std::uint64_t max_message_bytes =
      atMostHalf(std::uint64_t{64} << 30);  // at most half of this machine's memory
  // A message beyond that is read past, and EndpointHandler::onTooLarge() told; else its sender is
  // cut off.
  bool skip_too_large = false;
  // Bytes queued to one peer before send() from a caller thread waits.
  std::size_t max_queued_bytes = std::size_t{256} << 20;
};

// Large buffers between processes of one host go through shared memory (SharedArena): one memfd for
// each peer and direction, made when the first large buffer is sent.
struct ArenaOptions {
  bool enabled = true;  // false: neither offers shared memory nor takes what peers offer
  // Room in an arena, and so what one peer can keep of this process's memory. Sparse: only what
  // is used takes memory. At most a quarter of the machine's.
  std::uint64_t bytes = std::uint64_t{1} << 30;
  std::size_t threshold = std::size_t{32} << 10;  // smaller buffers go through the socket
  // Buffers of one peer's exported memory that may be mapped here at once; the peer sends what
  // comes beyond them, and from then on all, through the socket. The kernel limits the mappings of
  // a process (vm.max_map_count), with which everything of it would fail.
  std::size_t max_peer_mappings = 4096;
};

// Large messages to other hosts: half of each goes over a second TCP connection (BulkConnection).
struct BulkOptions {
  bool enabled = true;  // false: neither makes such a connection nor takes one
  std::uint64_t threshold = std::uint64_t{1} << 20;  // messages that carry fewer bytes go whole
};

struct EndpointOptions {
  std::string group_id;   // any text; all members must give the same
  std::string name;       // 1..128 bytes, no control character
  std::int32_t rank = 0;  // >= 0
  AuthKey key;            // shared by the group
  // By TLS 1.3, with a key made from `key`, or with certificates if there are any. If one end
  // requires it and the other has it off, there is no connection.
  Encryption encryption = Encryption::kOff;
  TlsFiles certificates;       // all three or none; `name` must be among the certificate's
  std::string listen_address;  // numeric IPv4/IPv6 address; the port is chosen by the kernel
  bool unix_socket = true;     // also listen on an abstract Unix socket for peers of this host
  bool tcp = true;             // tests switch it off
  // False: a Unix socket connects processes of one user only; a peer of another user is reached
  // over TCP. Must be equal on all members that share a host.
  bool accept_other_users = false;
  // True for groups that processes join while it runs: an authenticated peer
  // that addPeer() has not named yet is accepted under the name it proved.
  bool accept_unknown_peers = false;
  // True for groups whose members may be started again, or be out of reach for long. A peer that is
  // lost is dialled until the two have met again, with a new session (onPeerReturned). An
  // authenticated new life of it, under the same rank and name, is accepted (onPeerJoined).
  bool reunite = false;
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds connect_timeout{10000};  // all attempts of one dial together
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds peer_timeout{5000};  // silence after which a peer is lost
  // How long a connection that broke may take to be made again before its peer is lost; at most
  // peer_timeout. 0: a broken connection is a lost peer, and a message's buffers are released when
  // they are written instead of when they are acknowledged.
  std::chrono::milliseconds reconnect_timeout{5000};
  Limits limits;
  ArenaOptions arena;
  BulkOptions bulk;
  // Where the handler takes memory for what comes through sockets, if anywhere: the endpoint calls
  // its tick(), so that it shrinks when it is idle.
  std::shared_ptr<WarmPool> receive_pool;
};

}  // namespace weft::transport
