// EndpointMailbox: the Mailbox of a group, over one transport::Endpoint per process.
//
// A message is sent at once as long as the receiver has to keep at most `eager_bytes` for this
// sender; the receiver grants bytes again that it has consumed. A message that would exceed this is
// only announced: its bytes stay at the sender until a receive wants them, and are then read from
// the socket straight into that receive's memory. So a sender that floods a rank fills only one
// window there, messages may be received in any order of their tags, and large ones are not copied
// on the way. Between processes of one host large messages are in shared memory of the sender
// (transport/arena/shared_arena.h), and the window is larger.
//
// As long as a rank lives, a connection to it that breaks is made again, and nothing is lost or
// comes twice (transport/session/session.h). So a message is kept until its receiver has it: a
// small one as a copy, so that its sender gets the memory back once it is written; a large one in
// place, and its receiver acknowledges it at once.
//
// Ranks that exchange nothing have no connection. A receive that has to wait makes a connection,
// because a rank notices a death by the end of a connection.
//
// Threads: as Mailbox says; join() and close() are for the caller's own threads, which may wait.
// close() and the destructor must not run in a completion. Completions run on the endpoint's loop
// thread and delay all messages while they do.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/net/mailbox/abort_notice.h"
#include "c10d_plugin/net/mailbox/mail_receiver.h"
#include "c10d_plugin/net/mailbox/mail_sender.h"
#include "c10d_plugin/net/mailbox/mailbox_state.h"
#include "c10d_plugin/net/mailbox/open_endpoint.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/endpoint.h"

namespace weft::collectives {

class EndpointMailbox final : public Mailbox, private transport::EndpointHandler {
 public:
  // Opens an endpoint, publishes its address under `store`, and waits for the others' until
  // `deadline`: kTimeout names the ranks that did not come. Nothing is connected yet.
  static transport::Result<std::unique_ptr<EndpointMailbox>> join(const MailboxOptions& options,
                                                                  KeyValue& store,
                                                                  Deadline deadline);
  ~EndpointMailbox() override;

  int rank() const noexcept override { return state_.rank; }
  int size() const noexcept override { return state_.size(); }
  Ticket send(int to, Tag tag, transport::OwnedBuffer data, OnSent done,
              const Label& label = {}) override;
  Ticket receive(int from, Tag tag, transport::OwnedBuffer into, OnReceived done,
                 const Label& label = {}) override;
  bool cancel(Ticket ticket, const transport::Error& why) override;
  void giveUp(int rank, transport::Error why) override;
  transport::Error reached(const OpStage& stage) override;
  std::vector<int> awaited() const override;
  void abort(transport::Error reason) override;

  // By rank: transport::hostIdentity() of each; equal and nonempty for those that share a host.
  const std::vector<std::string>& hosts() const noexcept { return hosts_; }
  // As hosts(), but empty for a rank that shares no memory.
  const std::vector<std::string>& sharing() const noexcept { return sharing_; }
  // The group's key, equal on all ranks; invalid in a group of one.
  const transport::AuthKey& key() const noexcept { return key_; }
  transport::EndpointStats stats() const;
  // Writes what was sent for at most `linger`, says goodbye, ends the loop thread. What still waits
  // fails with kShutdown. After abort() the others hear of that before the goodbye. Idempotent; the
  // destructor does it too.
  void close(std::chrono::milliseconds linger = std::chrono::milliseconds(2000));

 private:
  friend class FakeMailbox;  // tests/c10d_plugin/fake_mailbox.h: over an endpoint without sockets
  using Phase = MailboxState::Phase;
  using Presence = MailboxPeer::Presence;
  // Completions, to be called without the lock.
  struct Failures {
    std::vector<PostedReceive> receives;
    std::vector<std::shared_ptr<SendRequest>> sends;
  };

  EndpointMailbox(int own_rank, int ranks)
      : state_(own_rank, ranks), sender_(state_), receiver_(state_), notice_(state_) {
    state_.abort = [this](transport::Error why) { abort(std::move(why)); };
    state_.own = [this](const MailHeader& header, transport::OwnedBuffer bytes) {
      take(state_.rank, header, std::move(bytes));
    };
  }
  transport::Error open(const MailboxOptions& options, KeyValue& store, Deadline deadline);

  // Loop thread.
  transport::Disposition onHeader(std::int32_t from, std::span<const std::byte> bytes,
                                  std::span<const std::uint64_t> sizes,
                                  std::vector<transport::OwnedBuffer>& buffers) override;
  void onMessage(std::int32_t from, std::span<const std::byte> bytes,
                 std::vector<transport::OwnedBuffer> buffers) override;
  void onPeerLost(const transport::PeerLoss& loss) override;
  void onSendFailed(std::int32_t to, std::span<const std::byte> header,
                    const transport::Error& reason) override;

  // A whole message. Loop thread, or any if it is this rank's own.
  void take(int from, const MailHeader& header, transport::OwnedBuffer bytes);
  // Fails what waits for this rank: nothing more comes from it or goes to it.
  void removePeer(int rank, Presence presence, const transport::Error& reason);
  // Fails all requests that wait. False: the mailbox had ended before.
  bool end(Phase phase, const transport::Error& reason);
  static void fail(Failures failures, const transport::Error& reason);

  transport::AuthKey key_;
  std::vector<std::string> hosts_;
  std::vector<std::string> sharing_;
  MailboxState state_;
  MailSender sender_;
  MailReceiver receiver_;
  AbortNotice notice_;
  std::mutex close_mutex_;
};

}  // namespace weft::collectives
