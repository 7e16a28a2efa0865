#include "tests/rpc_backend/rref_world.h"

#include <algorithm>
#include <utility>

namespace weft::rpc::testing {

namespace {

template <typename T>
T take(std::vector<T>& from, std::size_t index) {
  T taken = std::move(from[index]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(index));
  return taken;
}

bool isRRefMessage(Kind kind) {
  return kind == Kind::kForkRequest || kind == Kind::kUserDelete || kind == Kind::kChildAccept;
}

}  // namespace

// Each life has ids of its own, as startIdsAnew() sees to it.
Worker::Worker(World& world, Rank own_rank, int own_life)
    : rank(own_rank),
      life(own_life),
      table(*this, own_rank),
      world_(world),
      next_id_(std::int64_t{own_life} << 32U) {}

RRefKey Worker::newId() { return {rank, next_id_++}; }

void Worker::send(Kind kind, Rank to, const PickledRRef& rref, int owner_life) {
  const Packet packet{kind, rank, life, to, rref, owner_life, 0};
  if (lost.contains(to)) {
    if (isRRefMessage(kind)) acknowledged(packet);  // RRefService::isMoot
    return;
  }
  world_.network.push_back(packet);
  // torch sends it again when the answer is late.
  while (isRRefMessage(kind) && world_.chance(20))
    world_.network.push_back(packet);
}

void Worker::create(Rank owner) {
  PickledRRef rref{owner, {newId(), newId()}, rank};
  references.push_back(
      std::make_unique<Reference>(Reference{rref, world_.lifeOf(owner), false, true, {}, false}));
  send(Kind::kRemoteCall, owner, rref, world_.lifeOf(owner));
}

void Worker::carry(const PickledRRef& rref, int owner_life, Rank to) {
  table.beforeSend(rref, to);
  if (lost.contains(to)) {
    table.undoSend(rref);
  } else {
    send(Kind::kPass, to, rref, owner_life);
  }
}

void Worker::pass(std::size_t reference, Rank to) {
  Reference& parent = *references[reference];
  const PickledRRef child{parent.rref.owner, {parent.rref.ids.value, newId()}, rank};
  parent.children.insert(child.ids.fork);
  carry(child, parent.owner_life, to);
}

void Worker::passOwn(const RRefKey& value, Rank to) {
  const PickledRRef child{rank, {value, newId()}, rank};
  addFork(child.ids);
  carry(child, life, to);
}

void Worker::drop(std::size_t reference) {
  references[reference]->wanted = false;
  deleteIfDone(*references[reference]);
}

void Worker::timeOut(std::size_t reference) {
  Reference& timed_out = *references[reference];
  if (timed_out.confirmed || timed_out.rref.parent != rank) return;
  timed_out.confirmed = true;
  timed_out.timed_out = true;
  drop(reference);
}

void Worker::deleteIfDone(Reference& reference) {
  if (reference.wanted || !reference.confirmed || !reference.children.empty()) return;
  const PickledRRef gone = reference.rref;
  const int owner_life = reference.owner_life;
  std::erase_if(references, [&](const auto& held) { return held.get() == &reference; });
  send(Kind::kUserDelete, gone.owner, gone, owner_life);
}

void Worker::confirm(const RRefKey& fork) {
  for (const auto& reference : references) {
    if (reference->rref.ids.fork != fork || reference->confirmed) continue;
    reference->confirmed = true;
    deleteIfDone(*reference);
    return;
  }
}

ForkTable::Dropped Worker::removeFork(const ForkIds& ids) {
  const auto found = forks.find(ids.value);
  if (found == forks.end()) return nullptr;
  found->second.erase(ids.fork);
  if (!found->second.empty()) return nullptr;
  forks.erase(found);
  return std::make_shared<RRefKey>(ids.value);
}

void Worker::childSettled(const RRefKey& fork) {
  for (const auto& reference : references) {
    if (reference->children.erase(fork) == 0) continue;
    deleteIfDone(*reference);
    return;
  }
}

// What torch does when a control message of this worker has been answered.
void Worker::acknowledged(const Packet& packet) {
  if (packet.kind != Kind::kForkRequest) return;
  const RRefKey fork = packet.rref.ids.fork;
  const bool first = std::any_of(references.begin(), references.end(), [&](const auto& reference) {
    return reference->rref.ids.fork == fork && !reference->confirmed;
  });
  if (!first) return;
  // The message before the deletion: confirm() may send that.
  send(Kind::kChildAccept, packet.rref.parent, packet.rref, packet.owner_life);
  confirm(fork);
}

void Worker::process(const Packet& packet) {
  const PickledRRef& rref = packet.rref;
  switch (packet.kind) {
    case Kind::kRemoteCall:
      table.onRemoteCall(rref.ids, packet.from, packet.losses_then);
      running.push_back(packet);
      break;
    case Kind::kRemoteResult:
      confirm(rref.ids.fork);
      break;
    case Kind::kPass:
      if (rref.owner == rank) {
        send(Kind::kChildAccept, rref.parent, rref, packet.owner_life);
        break;
      }
      references.push_back(std::make_unique<Reference>(
          Reference{rref, packet.owner_life, rref.parent == rref.owner, true, {}, false}));
      if (rref.parent != rref.owner) {
        send(Kind::kForkRequest, rref.owner, rref, packet.owner_life);
      }
      break;
    case Kind::kForkRequest:
      table.onForkRequest(rref.ids, packet.from, packet.losses_then);
      send(Kind::kForkRequestAck, packet.from, rref, packet.owner_life);
      break;
    case Kind::kForkRequestAck: {
      Packet mine = packet;
      mine.kind = Kind::kForkRequest;
      acknowledged(mine);
      break;
    }
    case Kind::kUserDelete:
      table.onUserDelete(rref.ids, packet.from);
      break;
    case Kind::kChildAccept:
      table.onChildAccept(rref.ids.fork, packet.from);
      break;
  }
}

void Worker::finish(const Packet& call) {
  addFork(call.rref.ids);  // torch does, before it answers
  table.onRemoteResult(call.rref.ids, call.from, call.losses_then);
  send(Kind::kRemoteResult, call.from, call.rref, call.owner_life);
}

void Worker::notice(Rank peer) {
  table.lose(peer);
  lost.insert(peer);
  to_reap.insert(peer);
  // What waits for its answer has it, or never will: CallCompleter::fail, settleUsersOf.
  std::vector<Packet> pending;
  for (const auto& reference : references) {
    if (reference->rref.owner == peer && !reference->confirmed) {
      pending.push_back(
          {Kind::kForkRequest, rank, life, peer, reference->rref, reference->owner_life, 0});
    }
  }
  for (const Packet& packet : pending) {
    if (packet.rref.parent == rank) {
      confirm(packet.rref.ids.fork);
    } else {
      acknowledged(packet);
    }
  }
}

World::World(std::uint32_t seed) : random_(seed) {
  for (Rank rank = 0; rank < kWorkers; ++rank) {
    workers_[static_cast<std::size_t>(rank)] = std::make_unique<Worker>(*this, rank, 0);
  }
}

void World::act(Worker& actor) {
  const Rank other = static_cast<Rank>(pick(kWorkers));
  const std::size_t held = actor.references.size();
  switch (pick(6)) {
    case 0:
      if (other != actor.rank) actor.create(other);
      break;
    case 1:
    case 2:
      if (held > 0 && other != actor.rank) actor.pass(pick(held), other);
      break;
    case 3:
      if (other != actor.rank && !actor.forks.empty()) {
        const auto value =
            std::next(actor.forks.begin(), static_cast<std::ptrdiff_t>(pick(actor.forks.size())));
        actor.passOwn(RRefKey(value->first), other);
      }
      break;
    case 4:
      if (held > 0) actor.drop(pick(held));
      break;
    default:
      if (held > 0 && chance(20)) actor.timeOut(pick(held));
      break;
  }
}

bool World::deliver() {
  if (network.empty()) return false;
  Packet packet = take(network, pick(network.size()));
  Worker* to = worker(packet.to);
  // A peer that is dead may still be heard until its loss is noticed, and not after.
  if (to == nullptr) return true;
  if (!alive(packet.from, packet.from_life) &&
      (to->lost.contains(packet.from) || worker(packet.from) != nullptr || chance(30))) {
    return true;
  }
  packet.losses_then = to->table.lossCount();
  to->arrived.push_back(packet);
  return true;
}

bool World::work() {
  std::vector<Worker*> busy;
  for (const auto& one : workers_) {
    if (one && (!one->arrived.empty() || !one->running.empty())) busy.push_back(one.get());
  }
  if (busy.empty()) return false;
  Worker& one = *busy[pick(busy.size())];
  if (!one.running.empty() && (one.arrived.empty() || chance(30))) {
    one.finish(take(one.running, pick(one.running.size())));
  } else {
    one.process(take(one.arrived, pick(one.arrived.size())));
  }
  return true;
}

void World::kill(Rank rank) { workers_[static_cast<std::size_t>(rank)].reset(); }

// The same name again: only after all have noticed the end of the former life.
void World::restart(Rank rank) {
  for (const auto& one : workers_) {
    if (one && !one->lost.contains(rank)) return;
  }
  const int life = ++lives_[static_cast<std::size_t>(rank)];
  std::erase_if(network, [&](const Packet& packet) { return packet.to == rank; });
  workers_[static_cast<std::size_t>(rank)] = std::make_unique<Worker>(*this, rank, life);
  for (const auto& one : workers_) {
    if (one) one->lost.erase(rank);
    if (!one) worker(rank)->lost.insert(static_cast<Rank>(&one - workers_.data()));
  }
}

bool World::noticeOrReap() {
  bool any = false;
  for (const auto& one : workers_) {
    if (!one) continue;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      if (worker(rank) == nullptr && !one->lost.contains(rank)) {
        one->notice(rank);
        any = true;
      } else if (one->to_reap.contains(rank) && chance(60)) {
        one->releaseForks(rank);
        one->to_reap.erase(rank);
        any = true;
      }
      if (any && chance(50)) return true;
    }
  }
  return any;
}

void World::step() {
  const std::size_t dice = pick(100);
  const Rank rank = static_cast<Rank>(pick(kWorkers));
  Worker* one = worker(rank);
  if (dice < 30) {
    if (one != nullptr) act(*one);
  } else if (dice < 62) {
    deliver();
  } else if (dice < 94) {
    work();
  } else if (dice < 97) {
    noticeOrReap();
  } else if (dice < 98) {
    const auto living =
        std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return w != nullptr; });
    if (one != nullptr && living > 2) kill(rank);
  } else if (one == nullptr) {
    restart(rank);
  }
}

void World::settle() {
  const auto reaping = [&] {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& one) { return one && !one->to_reap.empty(); });
  };
  while (deliver() || work() || noticeOrReap() || reaping()) {
  }
}

void World::dropAll() {
  for (const auto& one : workers_) {
    if (!one) continue;
    for (std::size_t i = one->references.size(); i-- > 0;) {
      if (i < one->references.size()) one->drop(i);
    }
  }
}

std::optional<std::string> World::problem(bool settled) const {
  std::map<Rank, std::set<RRefKey>> held;  // by owner
  for (const auto& one : workers_) {
    if (!one) continue;
    for (const auto& reference : one->references) {
      const PickledRRef& rref = reference->rref;
      held[rref.owner].insert(rref.ids.fork);  // a new life may be asked for a value of the old
      if (!alive(rref.owner, reference->owner_life)) continue;
      const Worker& owner = *workers_[static_cast<std::size_t>(rref.owner)];
      const auto known = owner.forks.find(rref.ids.value);
      const bool there = known != owner.forks.end() && known->second.contains(rref.ids.fork);
      const std::string what = "worker " + std::to_string(one->rank) + "'s reference " +
                               toString(rref.ids.fork) + " to a value of worker " +
                               std::to_string(rref.owner);
      const bool sure = reference->confirmed && !reference->timed_out;
      if ((sure || settled) && !there) return what + " is not known to its owner";
      if (settled && !reference->confirmed) return what + " was never confirmed";
      if (settled && !reference->children.empty()) return what + " still waits for a child";
    }
  }
  if (!settled) return std::nullopt;
  for (const auto& one : workers_) {
    if (!one) continue;
    for (const auto& [value, forks] : one->forks) {
      for (const RRefKey& fork : forks) {
        if (!held[one->rank].contains(fork)) {
          return "worker " + std::to_string(one->rank) + " keeps " + toString(value) + " for " +
                 toString(fork) + ", which nobody holds";
        }
      }
    }
    for (const auto& holding : one->table.holdings()) {
      if (!one->forks.contains(holding.ids.value)) return "the table holds more than the table";
    }
  }
  return std::nullopt;
}

}  // namespace weft::rpc::testing
