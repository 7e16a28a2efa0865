// Every knob of an Endpoint, with its unit and default. Limits are options, not
// constants, so that a deployment can tighten them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/auth/auth_key.h"
#include "transport/memory/warm_pool.h"

namespace weft::transport {

// What a peer may make this process hold. Checked before memory is taken.
struct Limits {
  std::size_t max_header_bytes = std::size_t{16} << 20;
  std::uint32_t max_buffers = 1U << 20;
  std::uint64_t max_message_bytes = std::uint64_t{64} << 30;
  // Bytes queued to one peer before send() from a caller thread waits.
  std::size_t max_queued_bytes = std::size_t{256} << 20;
  std::uint32_t max_unauthenticated = 64;  // connections in handshake at once
};

// Large buffers between processes of one host go through shared memory (SharedArena): one memfd for
// each peer and direction, made when the first large buffer is sent.
struct ArenaOptions {
  bool enabled = true;  // false: neither offers shared memory nor takes what peers offer
  // Room in an arena, and so what one peer can keep of this process's memory. Sparse: only what
  // is used takes memory. At most a quarter of the machine's.
  std::uint64_t bytes = std::uint64_t{1} << 30;
  std::size_t threshold = std::size_t{32} << 10;           // smaller buffers go through the socket
  std::uint64_t max_peer_bytes = std::uint64_t{64} << 30;  // larger arenas of peers are refused
};

// Large messages to other hosts: half of each goes over a second TCP connection (BulkConnection).
struct BulkOptions {
  bool enabled = true;  // false: neither makes such a connection nor takes one
  std::uint64_t threshold = std::uint64_t{1} << 20;  // messages that carry fewer bytes go whole
};

struct EndpointOptions {
  std::string group_id;        // any text; all members must give the same
  std::string name;            // 1..128 bytes
  std::int32_t rank = 0;       // >= 0
  AuthKey key;                 // shared by the group
  std::string listen_address;  // numeric IPv4/IPv6 address; the port is chosen by the kernel
  bool unix_socket = true;     // also listen on an abstract Unix socket for peers of this host
  bool tcp = true;             // tests switch it off
  // True for groups that processes join while it runs: an authenticated peer
  // that addPeer() has not named yet is accepted under the name it proved.
  bool accept_unknown_peers = false;
  // True for groups whose members may be started again: an authenticated new life of a peer that is
  // lost, under the same rank and name, is accepted as onPeerJoined() says.
  bool accept_successors = false;
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds connect_timeout{10000};  // all attempts of one dial together
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds peer_timeout{5000};  // silence after which a peer is lost
  // How long a connection that broke may take to be made again before its peer is lost; at most
  // peer_timeout. 0: a broken connection is a lost peer, and a message's buffers are let go of when
  // they are written instead of when they are acknowledged.
  std::chrono::milliseconds reconnect_timeout{5000};
  Limits limits;
  ArenaOptions arena;
  BulkOptions bulk;
  // Where the handler takes memory for what comes through sockets, if it does: the endpoint sees to
  // it that this shrinks when it is quiet.
  std::shared_ptr<WarmPool> receive_pool;
};

}  // namespace weft::transport
