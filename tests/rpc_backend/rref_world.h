// Four workers in one process, each with a table and a table like torch's, and a network that
// delivers in any order, twice, or not at all to whom has died: for the property test of RRefTable.
// What torch does with RRefs is modelled as it is (rref_context.cpp): when a reference is
// confirmed, what keeps it, which message follows which.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rpc_backend/rref/rref_table.h"

namespace weft::rpc::testing {

enum class Kind {
  kRemoteCall,
  kRemoteResult,  // a creates a value at b; b's answer
  kPass,          // a call that carries an RRef
  kForkRequest,
  kForkRequestAck,
  kUserDelete,
  kChildAccept,
};

struct Packet {
  Kind kind{};
  Rank from = -1;
  int from_life = 0;
  Rank to = -1;
  PickledRRef rref;
  int owner_life = 0;                    // of the value
  RRefTable::LossCount losses_then = 0;  // set when it arrives
};

// A reference that a worker holds (torch's UserRRef).
struct Reference {
  PickledRRef rref;
  int owner_life = 0;
  bool confirmed = false;
  bool wanted = true;          // the program still has it
  std::set<RRefKey> children;  // passed on, not yet settled
  bool timed_out = false;      // confirmed without the owner's word
};

class World;

class Worker : public ForkTable {
 public:
  Worker(World& world, Rank rank, int life);

  // What the program does.
  void create(Rank owner);
  void pass(std::size_t reference, Rank to);
  void passOwn(const RRefKey& value, Rank to);
  void drop(std::size_t reference);
  void timeOut(std::size_t reference);  // of an unconfirmed remote call: torch deletes it at once

  // What the agent does.
  void process(const Packet& packet);
  void finish(const Packet& call);
  void notice(Rank peer);
  void releaseForks(Rank peer) { table.releaseForks(peer); }

  void addFork(const ForkIds& ids) override { forks[ids.value].insert(ids.fork); }
  Dropped removeFork(const ForkIds& ids) override;
  void childSettled(const RRefKey& fork) override;

  const Rank rank;
  const int life;
  RRefTable table;
  std::map<RRefKey, std::set<RRefKey>> forks;
  std::vector<std::unique_ptr<Reference>> references;
  std::vector<Packet> arrived;  // wait for a worker thread
  std::vector<Packet> running;  // remote calls whose function runs
  std::set<Rank> lost;          // peers that it knows to be lost
  std::set<Rank> to_reap;

 private:
  RRefKey newId();
  void send(Kind kind, Rank to, const PickledRRef& rref, int owner_life);
  void carry(const PickledRRef& rref, int owner_life, Rank to);
  void confirm(const RRefKey& fork);
  void deleteIfDone(Reference& reference);
  void acknowledged(const Packet& packet);

  World& world_;
  std::int64_t next_id_;
};

class World {
 public:
  static constexpr Rank kWorkers = 4;
  explicit World(std::uint32_t seed);

  void step();     // something happens
  void settle();   // no program acts any more, and all that is under way comes to rest
  void dropAll();  // every program forgets every reference
  // What is wrong, if anything. Held at all times; `settled`: and what must hold at rest.
  std::optional<std::string> problem(bool settled) const;

  std::size_t pick(std::size_t count) { return count == 0 ? 0 : random_() % count; }
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  bool alive(Rank rank, int life) const {
    return workers_[static_cast<std::size_t>(rank)] &&
           life == lives_[static_cast<std::size_t>(rank)];
  }
  int lifeOf(Rank rank) const { return lives_[static_cast<std::size_t>(rank)]; }

  std::vector<Packet> network;

 private:
  Worker* worker(Rank rank) { return workers_[static_cast<std::size_t>(rank)].get(); }
  void act(Worker& worker);
  bool deliver();
  bool work();
  void kill(Rank rank);
  void restart(Rank rank);
  bool noticeOrReap();

  std::mt19937 random_;
  std::vector<std::unique_ptr<Worker>> workers_{kWorkers};
  std::vector<int> lives_ = std::vector<int>(kWorkers, 0);
};

}  // namespace weft::rpc::testing
