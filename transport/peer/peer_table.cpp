#include "transport/peer/peer_table.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "transport/base/peer_name.h"

namespace weft::transport {

std::shared_ptr<Peer> PeerTable::find(std::int32_t rank) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto found = known_.find(rank);
  return found == known_.end() ? nullptr : found->second.peer;
}

Result<PeerTable::Added> PeerTable::add(const PeerInfo& info) {
  const std::string who = describePeer(info.name, info.rank);
  std::shared_ptr<Peer> replaced;  // destroyed after the lock
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  if (closed_)
    return Error(ErrorCode::kShutdown, "cannot add " + who + ": this endpoint is shutting down");
  const auto found = known_.find(info.rank);
  if (found == known_.end()) return Added{put(info, replaced), true};
  Entry& entry = found->second;
  const bool same_name = entry.peer->name() == info.name;
  if (same_name && entry.address == info.address) return Added{};
  if (entry.peer->life().finished()) return Added{put(info, replaced), true};
  if (!same_name || !entry.address.empty()) {
    return invalidArgument("cannot add " + who + ": rank " + std::to_string(info.rank) + " is " +
                           describePeer(entry.peer->name(), info.rank) +
                           (same_name ? " under another address" : "") +
                           ", which is not lost; remove it first, or give each worker a rank of "
                           "its own");
  }
  // It joined by itself before its address was known here.
  entry.address = info.address;
  return Added{entry.peer, false};
}

PeerTable::Added PeerTable::join(const PeerInfo& info) {
  std::shared_ptr<Peer> replaced;  // destroyed after the lock
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  const auto found = known_.find(info.rank);
  if (found != known_.end() && !found->second.peer->life().finished())
    return {found->second.peer, false};
  return {put(info, replaced), true};
}

// Nothing changes if it throws.
std::shared_ptr<Peer> PeerTable::put(const PeerInfo& info, std::shared_ptr<Peer>& replaced) {
  Entry entry{info.address, make_(info)};
  std::shared_ptr<Peer> peer = entry.peer;
  Entry& place = known_[info.rank];
  replaced = std::move(place.peer);
  place = std::move(entry);
  return peer;
}

std::string PeerTable::address(std::int32_t rank) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto found = known_.find(rank);
  return found == known_.end() ? std::string() : found->second.address;
}

void PeerTable::setAddress(std::int32_t rank, const std::string& address) {
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  const auto found = known_.find(rank);
  if (found != known_.end()) found->second.address = address;
}

std::shared_ptr<Peer> PeerTable::remove(std::int32_t rank) {
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  const auto found = known_.find(rank);
  if (found == known_.end() || closed_) return nullptr;
  closing_.push_back(std::move(found->second.peer));
  known_.erase(found);
  return closing_.back();
}

PeerTable::Peers PeerTable::all() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  Peers all = closing_;
  all.reserve(all.size() + known_.size());
  for (const auto& [rank, entry] : known_)
    all.push_back(entry.peer);
  return all;
}

std::vector<PeerStats> PeerTable::stats() const {
  Peers known;
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    known.reserve(known_.size());
    for (const auto& [rank, entry] : known_)
      known.push_back(entry.peer);
  }
  std::vector<PeerStats> stats;
  stats.reserve(known.size());
  for (const std::shared_ptr<Peer>& peer : known)
    stats.push_back(peer->stats());
  std::sort(stats.begin(), stats.end(),
            [](const PeerStats& a, const PeerStats& b) { return a.rank < b.rank; });
  return stats;
}

bool PeerTable::allFinished() const {
  const Peers peers = all();
  return std::all_of(peers.begin(), peers.end(),
                     [](const std::shared_ptr<Peer>& peer) { return peer->life().finished(); });
}

void PeerTable::dropFinished() {
  Peers finished;  // destroyed after the lock
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  const auto rest =
      std::partition(closing_.begin(), closing_.end(),
                     [](const std::shared_ptr<Peer>& peer) { return !peer->life().finished(); });
  std::move(rest, closing_.end(), std::back_inserter(finished));
  closing_.erase(rest, closing_.end());
}

void PeerTable::close() {
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  closed_ = true;
}

}  // namespace weft::transport
