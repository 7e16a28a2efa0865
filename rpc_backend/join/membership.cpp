#include "rpc_backend/join/membership.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "rpc_backend/join/static_meeting.h"
#include "rpc_backend/join/store_access.h"
#include "transport/base/peer_name.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {

constexpr milliseconds kUnboundedReplacement{30 * 60 * 1000};  // for a Store without timeout

bool contains(const std::vector<MemberRecord>& members, std::int32_t rank) {
  return std::ranges::any_of(members, [&](const auto& member) { return member.rank == rank; });
}

void removeLife(std::vector<MemberRecord>& members, std::int32_t rank, const std::string& address) {
  std::erase_if(members, [&](const MemberRecord& member) {
    return member.rank == rank && member.address == address;
  });
}

}  // namespace

Membership::Membership(c10::intrusive_ptr<c10d::Store> store, std::string name, std::int32_t rank,
                       int world)
    : store_(c10::make_intrusive<c10d::PrefixStore>("weft", store)),
      name_(std::move(name)),
      rank_(rank),
      world_(world),
      timeout_(store->getTimeout().count() > 0 ? store->getTimeout() : kUnboundedReplacement) {
  TORCH_CHECK_VALUE(rank_ >= 0, "worker '", name_, "': rank must not be negative, got ", rank_);
  TORCH_CHECK_VALUE(world_ >= 0, "worker '", name_, "': world_size must be positive, got ", world_);
  TORCH_CHECK_VALUE(world_ == 0 || rank_ < world_, "worker '", name_, "': rank ", rank_,
                    " is out of range for world_size ", world_, "; ranks go from 0 to ",
                    world_ - 1);
}

std::string Membership::me() const { return transport::describePeer(name_, rank_); }

void Membership::agreeOnKind() {
  const std::string mine = world_ == 0 ? "dynamic" : "static";
  const std::string kind = store_->compareSet("kind", std::string(), mine);
  TORCH_CHECK(kind == mine, me(),
              ": RPC group mixes statically and dynamically initialized members which is not "
              "supported. The group is ",
              kind, "; give world_size on all workers or on none.");
}

transport::GroupSecret Membership::secret(const std::string& key_file) {
  const auto offer = transport::newSecretText();
  TORCH_CHECK(offer.ok(), me(), ": the system gives no random numbers: ", offer.error().text());
  // The first worker decides, whichever rank it has; compareSet makes that atomic.
  store_->compareSet("secret", std::string(), offer.value());
  TORCH_CHECK(waitForKeys(*store_, {"secret"}, timeout_), me(),
              ": the Store holds no group secret after ", timeout_.count(),
              " ms; look at the process that serves the Store (usually rank 0)");
  const auto stored = transport::parseSecret(store_->get_to_str("secret"));
  TORCH_CHECK(stored.ok(), me(), ": ", stored.error().text());
  transport::GroupSecret secret = stored.value();
  if (key_file.empty()) return secret;
  const auto key = transport::AuthKey::fromFile(key_file);
  TORCH_CHECK(key.ok(), me(), ": ", key.error().text());
  secret.key = key.value();
  secret.from_file = true;
  return secret;
}

std::vector<MemberRecord> Membership::meet(const MemberRecord& self) {
  checkReadable(self, me());
  agreeOnKind();
  StaticMeeting meeting(store_, self, timeout_);
  std::vector<MemberRecord> others = meeting.run();
  store_ = meeting.store();
  was_restarted_ = meeting.wasRestarted();
  return others;
}

template <typename Change>
void Membership::updateMembers(const Change& change) {
  const auto started = steady_clock::now();
  std::string before;
  if (store_->check({kMembersKey})) before = store_->get_to_str(kMembersKey);
  while (true) {
    std::vector<MemberRecord> members = parseMembers(before, me());
    change(members);
    const std::string after = toText(members);
    std::string now = store_->compareSet(kMembersKey, before, after);
    if (now == after) return;
    TORCH_CHECK(steady_clock::now() - started < timeout_, me(),
                ": could not change the Store's list of the group's workers within ",
                timeout_.count(), " ms");
    before = std::move(now);
  }
}

std::vector<MemberRecord> Membership::join(const MemberRecord& self) {
  checkReadable(self, me());
  agreeOnKind();
  std::vector<MemberRecord> others;
  updateMembers([&](std::vector<MemberRecord>& members) {
    makeRoom(members);
    TORCH_CHECK(!contains(members, rank_), me(), ": the group already has a worker of rank ", rank_,
                "; give every worker a rank of its own");
    checkMembers(self, members);
    others = members;
    members.push_back(self);
  });
  was_restarted_ = store_->add("claim/" + std::to_string(rank_), 1) > 1;
  return others;
}

void Membership::makeRoom(std::vector<MemberRecord>& members) {
  replaced_.clear();
  std::erase_if(members, [&](const MemberRecord& member) {
    const bool in_the_way = member.rank == rank_ || member.name == name_;
    if (!in_the_way || isAlive(member)) return false;
    replaced_.push_back(member);
    return true;
  });
}

void Membership::withdraw(const std::string& address) {
  left_ = true;
  updateMembers([&](std::vector<MemberRecord>& members) {
    removeLife(members, rank_, address);
    for (const MemberRecord& member : replaced_) {
      if (!contains(members, member.rank)) members.push_back(member);
    }
  });
}

void Membership::forget(std::int32_t rank, const std::string& address) {
  if (rank == rank_) left_ = true;
  updateMembers([&](std::vector<MemberRecord>& members) { removeLife(members, rank, address); });
}

std::vector<MemberRecord> Membership::restore(const MemberRecord& member) {
  std::vector<MemberRecord> listed;
  updateMembers([&](std::vector<MemberRecord>& members) {
    const bool leaves = member.rank == rank_ && left_;
    if (!leaves && !contains(members, member.rank)) members.push_back(member);
    listed = members;
  });
  return listed;
}

}  // namespace weft::rpc
