// EndpointMailbox: the Mailbox of a group, over one transport::Endpoint per process.
//
// A message is sent at once as long as its receiver may have to keep fewer than a bounded number of
// bytes for this sender (`eager_bytes`); what the receiver has consumed it grants again. A larger
// message, or one too many, is only announced: its bytes stay at the sender until a receive wants
// them, and are then read from the socket straight into that receive's memory. So a sender that
// floods a rank fills a window there and no more, messages may be received in any order of their
// tags, and large ones are not copied on the way. Between processes of one host large messages lie
// in shared memory that the sender gives (transport/arena/shared_arena.h), and the window is
// larger.
//
// As long as a rank lives, a connection to it that breaks is made again and nothing is lost or
// comes twice (transport/session/session.h). A message that may have to go again is kept until its
// receiver has it: a small one as a copy, so that its sender has the memory back when it is
// written; a large one where it lies, and its receiver says at once that it has it.
//
// A rank with which nothing is exchanged costs no connection. A receive that has to wait makes one,
// since it is by the end of a connection that a death is noticed.
//
// Threads: as Mailbox says; join() and close() are for the caller's own threads, which may wait.
// close() and the destructor must not run in a completion. Completions run on the endpoint's loop
// thread and delay all messages while they do.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10d_plugin/core/key_value.h"
#include "c10d_plugin/core/mailbox.h"
#include "transport/auth/auth_key.h"
#include "transport/endpoint.h"

namespace weft::collectives {

struct MailboxOptions {
  int rank = 0;
  int size = 1;
  std::string listen_address = "127.0.0.1";  // numeric: transport::chooseListenAddress()
  std::string name;                          // in error texts; "": "host/process id"
  // The group's key. Not valid: rank 0 makes one and shares it through the KeyValue, which protects
  // the group from strangers as well as the KeyValue protects its contents.
  transport::AuthKey key;
  bool unix_socket = true;
  bool shared_memory = true;
  bool second_connection = true;
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds peer_timeout{5000};
  // How long a connection that broke may take to be made again; at most peer_timeout. 0: a broken
  // connection is a lost rank.
  std::chrono::milliseconds reconnect_timeout{5000};
  // Bytes that a rank keeps for one sender at most, counting 64 for each message; equal on all.
  std::uint64_t eager_bytes = std::uint64_t{8} << 20;
  std::uint64_t eager_bytes_same_host = std::uint64_t{256} << 20;  // they lie in the sender's arena
};

class EndpointMailbox : public Mailbox {
 public:
  // Opens an endpoint, publishes its address under `store`, and waits for the others' until
  // `deadline`: kTimeout names the ranks that did not come. Nothing is connected yet.
  static transport::Result<std::unique_ptr<EndpointMailbox>> join(
      const MailboxOptions& options, KeyValue& store,
      std::chrono::steady_clock::time_point deadline);

  // By rank: transport::hostIdentity() of each; equal and nonempty for those that share a host.
  virtual const std::vector<std::string>& hosts() const noexcept = 0;
  virtual transport::EndpointStats stats() const = 0;
  // Writes what was sent for at most `linger`, says goodbye, ends the loop thread. What still waits
  // fails with kShutdown. Idempotent; the destructor does it too.
  virtual void close(std::chrono::milliseconds linger = std::chrono::milliseconds(2000)) = 0;
};

}  // namespace weft::collectives
