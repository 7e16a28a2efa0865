#include "c10d_plugin/net/mailbox/message_matcher.h"

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
    if (queue->first.from != from) {
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

void MessageMatcher::keep(std::shared_ptr<UnexpectedMessage> mail) {
  mail->arrival = ++arrivals_;
  waiting_[{mail->from, mail->tag}].push_back(std::move(mail));
}

std::shared_ptr<UnexpectedMessage> MessageMatcher::take(int from, Tag tag) {
  auto found = waiting_.end();
  if (from != kAnyRank) {
    found = waiting_.find({from, tag});
  } else {
    for (auto queue = waiting_.begin(); queue != waiting_.end(); ++queue) {
      if (queue->first.tag != tag) continue;
      if (found == waiting_.end() ||
          queue->second.front()->arrival < found->second.front()->arrival)
        found = queue;
    }
  }
  if (found == waiting_.end()) return nullptr;
  std::shared_ptr<UnexpectedMessage> mail = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) waiting_.erase(found);
  return mail;
}

void MessageMatcher::forgetUnfinished(int from) {
  for (auto queue = waiting_.begin(); queue != waiting_.end();) {
    if (queue->first.from == from)
      std::erase_if(queue->second, [](const auto& mail) { return !mail->whole; });
    queue = queue->second.empty() ? waiting_.erase(queue) : std::next(queue);
  }
}

bool MessageMatcher::forgetAnnounced(int from, std::uint64_t id) {
  for (auto queue = waiting_.begin(); queue != waiting_.end(); ++queue) {
    if (queue->first.from != from) continue;
    if (std::erase_if(queue->second, [&](const auto& mail) { return mail->id == id; }) == 0)
      continue;
    if (queue->second.empty()) waiting_.erase(queue);
    return true;
  }
  return false;
}

void MessageMatcher::clear() { waiting_.clear(); }

}  // namespace weft::collectives
