// MessageMatcher: which message belongs to which receive. No threads, no sockets: the rules only.
//
// A message goes to the receive that was posted first among those for its sender and tag and those
// for any sender and its tag; a receive gets the message that came first. Not thread-safe: the
// mailbox guards it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

struct PostedReceive {
  Mailbox::Ticket ticket = 0;
  int from = kAnyRank;
  Tag tag = 0;
  Label label;
  transport::OwnedBuffer into;
  Mailbox::OnReceived done;
};

// A message for which no receive was posted when it came.
struct UnexpectedMessage {
  int from = -1;
  Tag tag = 0;
  Label label;
  std::uint64_t size = 0;
  std::uint64_t arrival = 0;        // MessageMatcher numbers them
  std::optional<std::uint64_t> id;  // announced: its bytes are still at the sender
  bool whole = false;               // its bytes are here
  transport::OwnedBuffer bytes;     // when whole
  // Taken while its bytes were still arriving: by whom, or by a receive that it does not fit.
  std::optional<PostedReceive> taker;
  bool unwanted = false;
};

class MessageMatcher {
 public:
  void post(PostedReceive receive);
  // Takes out the receive that a message of this sender and tag belongs to.
  std::optional<PostedReceive> match(int from, Tag tag);
  std::optional<PostedReceive> cancel(Mailbox::Ticket ticket);
  // Those for this sender; for kAnyRank those for any sender.
  std::vector<PostedReceive> takePosted(int from);
  std::vector<PostedReceive> takeAllPosted();

  void keep(std::shared_ptr<UnexpectedMessage> mail);
  // Takes out what came first from this sender, or from anybody.
  std::shared_ptr<UnexpectedMessage> take(int from, Tag tag);
  // Drops what can't become whole any more, because its sender is gone.
  void forgetUnfinished(int from);
  // Drops an announced message; false: there is none.
  bool forgetAnnounced(int from, std::uint64_t id);
  void clear();

 private:
  struct Key {
    int from;
    Tag tag;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>()(key.tag * 0x9E3779B97F4A7C15U +
                                        static_cast<std::uint64_t>(key.from + 1));
    }
  };
  using Receives = std::list<PostedReceive>;
  using Mails = std::list<std::shared_ptr<UnexpectedMessage>>;

  std::unordered_map<Key, Receives, Hash> posted_;
  std::unordered_map<Key, Mails, Hash> waiting_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace weft::collectives
