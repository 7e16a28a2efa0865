// RendezvousReceiver: receives messages that their senders announce (RTS) and send when a receive
// wants them (CTS). An announcement without a receive waits in the matcher. The receive of a
// message that may be sent is in MailboxPeer::cleared, under the number that the sender gave the
// message.
//
// Threads: the loop thread, and any for this rank's own messages, except answer() and
// takeCleared(), which are called with the mailbox's lock. Failure: a peer that announces too much,
// or gives two messages one number, is cut off.
#pragma once

#include <mutex>
#include <vector>

#include "c10d_plugin/net/mailbox/mailbox_state.h"

namespace weft::collectives {

class RendezvousReceiver {
 public:
  // The matcher is guarded by the mailbox's lock.
  RendezvousReceiver(MailboxState& state, MessageMatcher& matcher)
      : state_(state), matcher_(matcher) {}

  void onRequestToSend(int from, const MailHeader& header);
  // The message is forgotten; a receive that waits for it fails.
  void onSendCancelled(int from, const MailHeader& header);
  // The header of a message that was cleared to come.
  transport::Disposition onHeader(int from, const MailHeader& header, std::uint64_t size,
                                  transport::OwnedBuffer& buffer);
  // The bytes of this rank's own message.
  void onOwnBytes(const MailHeader& header, const transport::OwnedBuffer& bytes);

  // Gives `receive` a message that was announced before, and is out of the matcher. `receive` is
  // moved from, or is over. Releases the lock.
  void answer(const UnexpectedMessage& message, PostedReceive& receive,
              std::unique_lock<std::mutex>& lock);
  // Adds the receives whose messages this peer has yet to send.
  static void takeCleared(MailboxPeer& peer, std::vector<PostedReceive>& to);

 private:
  void clearToSend(int from, const MailHeader& announced, PostedReceive& receive,
                   std::unique_lock<std::mutex>& lock);

  MailboxState& state_;
  MessageMatcher& matcher_;
};

}  // namespace weft::collectives
