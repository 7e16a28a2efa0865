// PeerTable: the peers of an endpoint by rank, and those that were removed and are still closing.
//
// Threads: any. Ownership: shares each peer with whoever uses it; none is destroyed under its lock.
#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/endpoint.h"
#include "transport/peer/peer.h"

namespace weft::transport {

class PeerTable {
 public:
  using Peers = std::vector<std::shared_ptr<Peer>>;
  using Make = std::function<std::shared_ptr<Peer>(const PeerInfo&)>;

  explicit PeerTable(Make make) : make_(std::move(make)) {}

  // Null: unknown.
  std::shared_ptr<Peer> find(std::int32_t rank) const;

  // As Endpoint::addPeer() says, for valid `info`.
  struct Added {
    std::shared_ptr<Peer> peer;  // null: it was known, and nothing changes
    bool is_new = false;         // else only its address is
  };
  Result<Added> add(const PeerInfo& info);
  // Adds an authenticated peer that nobody named; its address may be unknown (""). `is_new` false:
  // add() named it before.
  Added join(const PeerInfo& info);
  // The address of a known peer; "": the peer or its address is unknown.
  std::string address(std::int32_t rank) const;
  // Does nothing for an unknown rank.
  void setAddress(std::int32_t rank, const std::string& address);
  // Removes a peer, which stays among all() until it is finished. Null: unknown, or the table is
  // closed.
  std::shared_ptr<Peer> remove(std::int32_t rank);

  // Includes those that are closing.
  Peers all() const;
  std::vector<PeerStats> stats() const;
  bool allFinished() const;
  void dropFinished();
  // No peer is added or removed from now on.
  void close();

 private:
  struct Entry {
    std::string address;
    std::shared_ptr<Peer> peer;
  };

  std::shared_ptr<Peer> put(const PeerInfo& info, std::shared_ptr<Peer>& replaced);

  const Make make_;
  mutable std::shared_mutex mutex_;  // guards what follows; a leaf
  std::unordered_map<std::int32_t, Entry> known_;
  Peers closing_;
  bool closed_ = false;
};

}  // namespace weft::transport
