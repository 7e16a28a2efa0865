// The mailbox behind endpoint_mailbox.h: joins and ends, and passes what callers and the endpoint
// want to its sending and receiving side.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/net/mailbox/mail_receiver.h"
#include "c10d_plugin/net/mailbox/mail_sender.h"
#include "c10d_plugin/net/mailbox/mailbox_state.h"

namespace weft::collectives {

class EndpointMailboxImpl final : public EndpointMailbox, private transport::EndpointHandler {
 public:
  explicit EndpointMailboxImpl(const MailboxOptions& options);
  ~EndpointMailboxImpl() override;

  transport::Error open(KeyValue& store, Deadline deadline);

  int rank() const noexcept override { return state_.rank; }
  int size() const noexcept override { return state_.size(); }
  Ticket send(int to, Tag tag, transport::OwnedBuffer data, OnSent done,
              const Label& label) override;
  Ticket receive(int from, Tag tag, transport::OwnedBuffer into, OnReceived done,
                 const Label& label) override;
  bool cancel(Ticket ticket, const transport::Error& why) override;
  void giveUp(int rank, transport::Error why) override;
  void abort(transport::Error reason) override;
  const std::vector<std::string>& hosts() const noexcept override { return hosts_; }
  transport::EndpointStats stats() const override;
  void close(std::chrono::milliseconds linger) override;

 private:
  using Phase = MailboxState::Phase;
  using Presence = MailboxPeer::Presence;
  // Completions, to be called without the lock.
  struct Failures {
    std::vector<PostedReceive> receives;
    std::vector<std::shared_ptr<SendRequest>> sends;
  };

  // Loop thread.
  transport::Disposition onHeader(std::int32_t from, std::span<const std::byte> bytes,
                                  std::span<const std::uint64_t> sizes,
                                  std::vector<transport::OwnedBuffer>& buffers) override;
  void onMessage(std::int32_t from, std::span<const std::byte> bytes,
                 std::vector<transport::OwnedBuffer> buffers) override;
  void onPeerLost(const transport::PeerLoss& loss) override;
  void onSendFailed(std::int32_t to, std::span<const std::byte> header,
                    const transport::Error& reason) override;

  transport::EndpointOptions endpointOptions(const std::string& group_id,
                                             const transport::AuthKey& key) const;
  // Nothing more comes from this rank, or goes to it.
  void removePeer(int rank, Presence presence, const transport::Error& reason);
  void tellOfAbort(int to);
  void cutConnections(const transport::Error& reason);
  // Ends all requests that wait. False: the mailbox had ended before.
  bool end(Phase phase, const transport::Error& reason);
  static void fail(Failures failures, const transport::Error& reason);

  const MailboxOptions options_;
  std::vector<std::string> hosts_;
  MailboxState state_;
  MailSender sender_;
  MailReceiver receiver_;
  std::mutex close_mutex_;
};

}  // namespace weft::collectives
