// MailReceiver: the receiving side of a mailbox.
//
// The header of a message decides where its bytes are read to: into the memory of a posted receive,
// or into a new buffer as an unexpected message. RendezvousReceiver handles announced messages.
//
// Threads: any thread may receive and cancel; messages come on the loop thread.
#pragma once

#include <optional>
#include <vector>

#include "c10d_plugin/net/mailbox/mailbox_state.h"
#include "c10d_plugin/net/mailbox/rendezvous_receiver.h"

namespace weft::collectives {

class MailReceiver {
 public:
  explicit MailReceiver(MailboxState& state) : state_(state) {}

  // As Mailbox::receive().
  Mailbox::Ticket receive(int from, Tag tag, transport::OwnedBuffer into, Mailbox::OnReceived done,
                          const Label& label);
  // Cancels a posted receive; its completion will not run. False: there is none.
  bool cancel(Mailbox::Ticket ticket);

  // As Mailbox::reached().
  transport::Error reached(const Mailbox::OpStage& stage);
  // As Mailbox::awaited(). With the lock.
  std::vector<int> awaited() const { return matcher_.awaited(kCollectiveTags); }

  // Loop thread: a header, then the whole message.
  transport::Disposition onDataHeader(int from, const MailHeader& header, std::uint64_t size,
                                      transport::OwnedBuffer& buffer);
  void onData(int from, const MailHeader& header, transport::OwnedBuffer bytes);
  RendezvousReceiver& rendezvous() noexcept { return rendezvous_; }

  // The receives that fail when `from` is lost. With the lock.
  std::vector<PostedReceive> takeFrom(int from);
  // The receives whose memory nobody writes; forgets all unexpected messages. With the lock.
  std::vector<PostedReceive> takeAll();
  // The receive whose memory the loop thread was writing. Loop thread, or after its end.
  std::optional<PostedReceive> takeArriving(int from);

 private:
  transport::Disposition onEagerHeader(int from, const MailHeader& header, std::uint64_t size,
                                       transport::OwnedBuffer& buffer);
  void take(std::shared_ptr<UnexpectedMessage> message, PostedReceive receive,
            std::unique_lock<std::mutex>& lock);
  std::uint64_t consume(int from, std::uint64_t size);
  void grant(int to, std::uint64_t credit) const;
  std::vector<int> takeUnconnected(int from);

  MailboxState& state_;
  MessageMatcher matcher_;  // guarded by state_.mutex
  RendezvousReceiver rendezvous_{state_, matcher_};
};

}  // namespace weft::collectives
