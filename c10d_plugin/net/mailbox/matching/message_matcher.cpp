#include "c10d_plugin/net/mailbox/matching/message_matcher.h"

#include <iterator>
#include <utility>

namespace weft::collectives {

void MessageMatcher::post(PostedReceive receive) {
  posted_[{receive.from, receive.tag}].push_back(std::move(receive));
}

std::optional<PostedReceive> MessageMatcher::match(int from, Tag tag) {
  auto named = posted_.find({from, tag});
  const auto anyone = posted_.find({kAnyRank, tag});
  if (named == posted_.end() ||
      (anyone != posted_.end() && anyone->second.front().ticket < named->second.front().ticket)) {
    named = anyone;
  }
  if (named == posted_.end()) return std::nullopt;
  std::optional<PostedReceive> receive(std::move(named->second.front()));
  named->second.pop_front();
  if (named->second.empty()) posted_.erase(named);
  return receive;
}

std::optional<PostedReceive> MessageMatcher::cancel(Mailbox::Ticket ticket) {
  for (auto queue = posted_.begin(); queue != posted_.end(); ++queue) {
    for (auto receive = queue->second.begin(); receive != queue->second.end(); ++receive) {
      if (receive->ticket != ticket) continue;
      std::optional<PostedReceive> taken(std::move(*receive));
      queue->second.erase(receive);
      if (queue->second.empty()) posted_.erase(queue);
      return taken;
    }
  }
  return std::nullopt;
}

std::vector<PostedReceive> MessageMatcher::takePosted(int from) {
  std::vector<PostedReceive> taken;
  for (auto queue = posted_.begin(); queue != posted_.end();) {
    if (queue->first.first != from) {
      ++queue;
      continue;
    }
    std::move(queue->second.begin(), queue->second.end(), std::back_inserter(taken));
    queue = posted_.erase(queue);
  }
  return taken;
}

std::vector<PostedReceive> MessageMatcher::takeAllPosted() {
  std::vector<PostedReceive> taken;
  for (auto& [key, queue] : posted_)
    std::move(queue.begin(), queue.end(), std::back_inserter(taken));
  posted_.clear();
  return taken;
}

std::vector<int> MessageMatcher::awaited(Tag lowest) const {
  std::vector<int> senders;
  for (const auto& [key, queue] : posted_) {
    const auto [from, tag] = key;
    if (tag >= lowest && (senders.empty() || senders.back() != from)) senders.push_back(from);
  }
  return senders;
}

bool MessageMatcher::keep(std::shared_ptr<UnexpectedMessage> message) {
  const bool is_announced = message->state == UnexpectedMessage::State::kAnnounced;
  const Announcement announcement(message->from, message->id);
  if (is_announced && announced_.contains(announcement)) return false;
  message->arrival = ++arrivals_;
  Messages& queue = unexpected_[{message->from, message->tag}];
  queue.push_back(std::move(message));
  if (is_announced) announced_[announcement] = std::prev(queue.end());
  return true;
}

void MessageMatcher::leaveIndex(const UnexpectedMessage& message) {
  if (message.state == UnexpectedMessage::State::kAnnounced)
    announced_.erase({message.from, message.id});
}

std::shared_ptr<UnexpectedMessage> MessageMatcher::take(int from, Tag tag) {
  auto found = unexpected_.end();
  if (from != kAnyRank) {
    found = unexpected_.find({from, tag});
  } else {
    for (auto queue = unexpected_.begin(); queue != unexpected_.end(); ++queue) {
      if (queue->first.second != tag) continue;
      if (found == unexpected_.end() ||
          queue->second.front()->arrival < found->second.front()->arrival)
        found = queue;
    }
  }
  if (found == unexpected_.end()) return nullptr;
  std::shared_ptr<UnexpectedMessage> message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) unexpected_.erase(found);
  leaveIndex(*message);
  return message;
}

void MessageMatcher::forgetUnfinished(int from) {
  announced_.erase(announced_.lower_bound({from, 0}), announced_.lower_bound({from + 1, 0}));
  for (auto queue = unexpected_.begin(); queue != unexpected_.end();) {
    if (queue->first.first == from)
      std::erase_if(queue->second, [](const auto& message) {
        return message->state != UnexpectedMessage::State::kWhole;
      });
    queue = queue->second.empty() ? unexpected_.erase(queue) : std::next(queue);
  }
}

bool MessageMatcher::forgetAnnounced(int from, std::uint64_t id) {
  const auto found = announced_.find({from, id});
  if (found == announced_.end()) return false;
  const auto message = found->second;
  announced_.erase(found);
  const auto queue = unexpected_.find({from, (*message)->tag});
  queue->second.erase(message);
  if (queue->second.empty()) unexpected_.erase(queue);
  return true;
}

void MessageMatcher::clear() {
  announced_.clear();
  unexpected_.clear();
}

}  // namespace weft::collectives
