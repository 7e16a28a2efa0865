// The mailbox behind endpoint_mailbox.h. Split by what it does: sending and receiving
// (endpoint_mailbox.cpp), what comes from the wire (mailbox_delivery.cpp), and how it ends
// (mailbox_ending.cpp).
//
// One lock guards everything but what is marked as the loop thread's; it is a leaf, and not held
// while a message is sent or a completion runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/net/mailbox/mail_wire.h"
#include "c10d_plugin/net/mailbox/message_matcher.h"

namespace weft::collectives {

// What keeping a message costs besides its bytes.
inline constexpr std::uint64_t kPerMessage = 64;

class EndpointMailboxImpl final : public EndpointMailbox, private transport::EndpointHandler {
 public:
  explicit EndpointMailboxImpl(const MailboxOptions& options);
  ~EndpointMailboxImpl() override;

  transport::Error open(KeyValue& store, std::chrono::steady_clock::time_point deadline);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(peers_.size()); }
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
  enum class State : std::uint8_t { kOpen, kAborted, kClosed };  // only forward

  // A message on its way out: calls `done` when the last who needs its bytes lets it go.
  struct Outgoing;
  // What onHeader() found, for onMessage(). Loop thread.
  struct Arriving {
    std::optional<PostedReceive> receive;
    std::shared_ptr<UnexpectedMessage> mail;
    std::uint64_t grant = 0;  // bytes to grant again once it was received
  };
  struct Peer {
    bool talked = false;  // there is, or will be, a connection by which its loss is noticed
    bool gone = false;
    bool left = false;  // gone, in order
    bool told_of_abort = false;
    transport::Error reason;  // when gone
    std::uint64_t window = 0;
    std::uint64_t credit = 0;         // of the window: may be sent at once
    std::uint64_t owed = 0;           // received for good, not yet granted again
    std::uint64_t kept = 0;           // bytes of the window that wait here
    std::uint64_t announcements = 0;  // of messages that wait at the peer
    std::unordered_map<std::uint64_t, std::shared_ptr<Outgoing>> announced;  // to it, by ticket
    std::unordered_map<std::uint64_t, PostedReceive> cleared;  // its announced ones, to come
    Arriving arriving;                                         // loop thread
    std::atomic<std::uint32_t> under_way{0};  // Outgoing whose bytes the endpoint still needs
    std::atomic<bool> broken{false};          // what it was sent and not written will not be
  };
  // Completions, called when the lock is released.
  struct Failures {
    std::vector<PostedReceive> receives;
    std::vector<std::shared_ptr<Outgoing>> sends;
  };

  // endpoint_mailbox.cpp
  transport::Error meet(KeyValue& store, const std::string& key_check,
                        std::chrono::steady_clock::time_point deadline);
  transport::Error checkRank(int peer, const char* what) const;
  void sendToSelf(Tag tag, const transport::OwnedBuffer& data, const OnSent& done,
                  const Label& label);
  void transmit(int to, const MailHeader& header, const std::shared_ptr<Outgoing>& message);
  void tell(int to, const MailHeader& header);
  void takeWaiting(std::shared_ptr<UnexpectedMessage> mail, PostedReceive receive,
                   std::unique_lock<std::mutex>& lock);
  std::uint64_t consumed(int from, std::uint64_t cost);
  transport::Error whyNotFrom(int from) const;
  static std::string mismatch(const PostedReceive& receive, int from, std::uint64_t size,
                              const Label& label);
  static void complete(const PostedReceive& receive, transport::Error error, int from,
                       std::uint64_t size, const Label& label);

  // mailbox_delivery.cpp, loop thread
  transport::Disposition onHeader(std::int32_t from, std::span<const std::byte> header,
                                  std::span<const std::uint64_t> sizes,
                                  std::vector<transport::OwnedBuffer>& buffers) override;
  transport::Disposition onData(int from, const MailHeader& header, std::uint64_t size,
                                transport::OwnedBuffer& buffer);
  transport::Disposition onAnswer(int from, const MailHeader& header, std::uint64_t size,
                                  transport::OwnedBuffer& buffer);
  static bool comesAgain(const Peer& peer, std::uint64_t size, transport::OwnedBuffer& buffer);
  void onMessage(std::int32_t from, std::span<const std::byte> header,
                 std::vector<transport::OwnedBuffer> buffers) override;
  void onAnnounce(int from, const MailHeader& header);
  void onClear(int from, const MailHeader& header);
  void onTakenBack(int from, const MailHeader& header);
  void finish(int from, Arriving arrived, transport::OwnedBuffer bytes);

  // mailbox_ending.cpp
  void onPeerLost(const transport::PeerLoss& loss) override;
  void onSendFailed(std::int32_t to, std::span<const std::byte> header,
                    const transport::Error& reason) override;
  void lose(int rank, bool in_order, const transport::Error& reason);
  void answerAborted(int to);
  void cutOff(const transport::Error& reason);
  Failures takeEverything();
  void fail(Failures failures, const transport::Error& reason);
  bool end(State state, const transport::Error& reason);

  const int rank_;
  const MailboxOptions options_;
  std::vector<std::string> hosts_;

  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  transport::Error reason_;  // when not open
  MessageMatcher matcher_;
  Ticket tickets_ = 0;       // of receives and messages; an announced message's is its id
  std::vector<Peer> peers_;  // by rank

  std::mutex close_mutex_;
  std::unique_ptr<transport::Endpoint> endpoint_;  // null in a group of one
};

struct EndpointMailboxImpl::Outgoing {
  Outgoing(EndpointMailboxImpl& box, int to, transport::OwnedBuffer data, OnSent done)
      : box_(box), to_(to), data_(std::move(data)), done_(std::move(done)) {}
  ~Outgoing();
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  EndpointMailboxImpl& box_;
  const int to_;
  transport::OwnedBuffer data_;
  OnSent done_;
  transport::Error error_;
  bool under_way_ = false;
};

}  // namespace weft::collectives
