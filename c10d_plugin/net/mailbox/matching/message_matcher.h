// MessageMatcher: decides which message belongs to which receive.
//
// A message goes to the receive that was posted first among those for its tag and either its sender
// or any sender. A receive gets the message that came first.
//
// Threads: one at a time; the mailbox's lock guards it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "c10d_plugin/net/mailbox/matching/posted_receive.h"

namespace weft::collectives {

// A message for which no receive was posted when it came.
struct UnexpectedMessage {
  enum class State : std::uint8_t {
    kAnnounced,  // its bytes are still at the sender
    kArriving,   // its bytes are being read
    kClaimed,    // likewise, and `claimed_by` waits for them
    kDropped,    // likewise, and a receive that it does not fit has consumed it
    kWhole,      // its bytes are here
  };

  UnexpectedMessage(int sender, Tag its_tag, const Label& its_label, std::uint64_t bytes_in_all)
      : from(sender), tag(its_tag), label(its_label), size(bytes_in_all) {}

  const int from;
  const Tag tag;
  const Label label;
  const std::uint64_t size;
  State state = State::kArriving;
  std::uint64_t arrival = 0;     // MessageMatcher numbers them
  std::uint64_t id = 0;          // kAnnounced
  transport::OwnedBuffer bytes;  // kWhole
  std::optional<PostedReceive> claimed_by;
};

class MessageMatcher {
 public:
  void post(PostedReceive receive);
  // Takes out the receive that a message of this sender and tag belongs to.
  std::optional<PostedReceive> match(int from, Tag tag);
  std::optional<PostedReceive> cancel(Mailbox::Ticket ticket);
  // Takes out the receives for this sender; kAnyRank: those for any sender.
  std::vector<PostedReceive> takePosted(int from);
  std::vector<PostedReceive> takeAllPosted();
  // The senders of the posted receives with a tag from `lowest` on; ascending.
  std::vector<int> awaited(Tag lowest) const;

  // False, and nothing is kept: its sender has announced another message under the same id.
  bool keep(std::shared_ptr<UnexpectedMessage> message);
  // Takes out the message that came first from this sender, or from any.
  std::shared_ptr<UnexpectedMessage> take(int from, Tag tag);
  // The first message with a tag from `lowest` to `last` that is so; null: there is none. `isSo`
  // sees one message of each sender and tag.
  template <typename Predicate>
  const UnexpectedMessage* findUnexpected(Tag lowest, Tag last, Predicate isSo) const {
    for (auto at = unexpected_.begin(); at != unexpected_.end();) {
      const auto [from, tag] = at->first;
      if (tag < lowest) {
        at = unexpected_.lower_bound({from, lowest});
      } else if (tag > last) {
        at = unexpected_.lower_bound({from + 1, lowest});
      } else {
        if (isSo(*at->second.front())) return at->second.front().get();
        ++at;
      }
    }
    return nullptr;
  }
  // Drops the messages that are not whole, because their sender is gone.
  void forgetUnfinished(int from);
  // Drops an announced message; false: there is none.
  bool forgetAnnounced(int from, std::uint64_t id);
  void clear();

 private:
  using Key = std::pair<int, Tag>;  // the sender, or kAnyRank for receives
  using Receives = std::list<PostedReceive>;
  using Messages = std::list<std::shared_ptr<UnexpectedMessage>>;
  using Announcement = std::pair<int, std::uint64_t>;  // the sender, and its id

  // The index's entry of a message that is in no queue any more.
  void leaveIndex(const UnexpectedMessage& message);

  std::map<Key, Receives> posted_;
  std::map<Key, Messages> unexpected_;
  std::map<Announcement, Messages::iterator> announced_;  // those of unexpected_
  std::uint64_t arrivals_ = 0;
};

}  // namespace weft::collectives
