#include "rpc_backend/group/live_list.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/core/log.h"
#include "transport/base/peer_name.h"

namespace weft::rpc {

namespace {

bool isIn(const std::vector<MemberRecord>& members, const MemberRecord& sought) {
  return std::ranges::any_of(members, [&](const auto& member) {
    return member.rank == sought.rank && member.address == sought.address;
  });
}

}  // namespace

void LiveList::update(worker_id_t peer) {
  context_.completers.run([this, alive = context_.keepAlive(), peer] {
    try {
      // Another task may change the list meanwhile: what holds at the end counts.
      bool dead = false;
      do {
        dead = isDead(peer);
        takeOffOrRestore(peer, dead);
      } while (dead != isDead(peer));
      if (!losses_.lossOf(peer)) meetNewcomers();
    } catch (const std::exception& error) {
      logInfo("the group's list of workers could not be changed: " + std::string(error.what()));
    }
  });
}

// One that refuses this worker lives, and stays a member.
bool LiveList::isDead(worker_id_t peer) const {
  return losses_.lossOf(peer).has_value() && !losses_.refusesUs(peer);
}

void LiveList::takeOffOrRestore(worker_id_t peer, bool dead) {
  for (const MemberRecord& member : members_.all()) {
    if (member.rank != peer) continue;
    if (dead)
      membership_.forget(member.rank, member.address);
    else
      membership_.restore(member);
  }
}

void LiveList::meetNewcomers() {
  // Adds this worker in one step with reading: who joins later finds it there.
  const std::vector<MemberRecord> listed = membership_.restore(self_);
  if (!isIn(listed, self_)) return;  // it leaves, or has a successor
  const std::vector<MemberRecord> known = members_.all();
  for (const MemberRecord& member : listed) {
    if (member.rank == context_.rank || isIn(known, member)) continue;
    try {
      introduce_(member);
      logInfo(transport::describePeer(member.name, member.rank) +
              " joined the group while this worker was out of reach");
    } catch (const c10::Error& error) {
      logInfo(error.what_without_backtrace());
    }
  }
}

}  // namespace weft::rpc
