#include "rpc_backend/group/membership.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "rpc_backend/group/store_access.h"
#include "transport/auth/auth_key.h"
#include "transport/base/peer_name.h"
#include "transport/io/socket.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {

constexpr milliseconds kProgressEvery{5000};
constexpr milliseconds kSlice{250};  // how soon a waiting worker notices that the group can't form
constexpr milliseconds kUnboundedReplacement{30 * 60 * 1000};  // for a Store without timeout
constexpr milliseconds kProbe{1000};                           // for a former life to answer
constexpr const char* kMembersKey = "members";
constexpr const char* kOutcomeKey = "outcome";
constexpr const char* kFormed = "formed";  // the outcome; any other is the reason why not
// In a larger group only rank 0 names the missing while all wait: each that does so asks the Store
// for all of them.
constexpr int kAllTell = 64;

std::string memberKey(std::int32_t rank) { return "member/" + std::to_string(rank); }
std::string claimKey(std::int32_t rank) { return "claim/" + std::to_string(rank); }

// In one round trip where the Store can do that: 64 workers that read each other one by one wait
// for 4,000 answers of one thread.
std::vector<MemberRecord> readRecords(c10d::Store& store, const std::vector<std::int32_t>& ranks,
                                      const std::string& who) {
  std::vector<std::string> keys;
  for (const std::int32_t rank : ranks)
    keys.push_back(memberKey(rank));
  std::vector<MemberRecord> records;
  if (keys.empty()) return records;
  const auto texts = store.multiGet(keys);
  TORCH_CHECK(texts.size() == ranks.size(), who, ": the Store answered with ", texts.size(),
              " records instead of ", ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto record = MemberRecord::fromText({texts[i].begin(), texts[i].end()});
    TORCH_CHECK(record && record->rank == ranks[i], who, ": what rank ", ranks[i],
                " wrote into the Store is no worker record");
    records.push_back(*record);
  }
  return records;
}

// One record that others cannot read would break a dynamic group's list for all of them.
void checkReadable(const MemberRecord& self, const std::string& who) {
  TORCH_CHECK_VALUE(
      isReadable(self), who,
      ": the other workers could not read its record; look at the worker names in its device maps");
}

// Every worker reports the first pair that does not fit, in the same words.
void checkMembers(const MemberRecord& self, std::vector<MemberRecord> all) {
  all.push_back(self);
  std::sort(all.begin(), all.end(),
            [](const MemberRecord& a, const MemberRecord& b) { return a.rank < b.rank; });
  const MemberRecord& first = all.front();
  std::unordered_map<std::string, std::int32_t> ranks{{first.name, first.rank}};
  for (std::size_t i = 1; i < all.size(); ++i) {
    const MemberRecord& other = all[i];
    const auto who = [&] {
      return transport::describePeer(other.name, other.rank) + " and " +
             transport::describePeer(first.name, first.rank);
    };
    const auto [namesake, is_new] = ranks.emplace(other.name, other.rank);
    TORCH_CHECK(is_new, "RPC worker name '", other.name, "' is not unique. Workers of rank ",
                namesake->second, " and ", other.rank,
                " have the same name; give every worker a name of its own.");
    TORCH_CHECK(other.wire == first.wire, who(), " speak different versions of Weft's protocol (",
                other.weft, " with ", other.wire, ", ", first.weft, " with ", first.wire,
                "); install the same Weft on all");
    TORCH_CHECK(other.world == first.world, who(), " were started with different world_size (",
                other.world, " and ", first.world, ")");
    TORCH_CHECK(other.auth == first.auth, who(), " take the group's key from different places (",
                other.auth, " and ", first.auth,
                "); set WEFT_AUTH_KEY_FILE on all workers or on none");
    TORCH_CHECK(other.key_check == first.key_check, who(),
                " have different keys in their key files; give all workers the same file");
  }
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

GroupSecret Membership::secret(const std::string& key_file) {
  auto random = transport::AuthKey::random();
  auto group = transport::AuthKey::random();
  TORCH_CHECK(random.ok() && group.ok(), me(), ": no random numbers from the system");
  // The first worker decides, whichever rank it has; compareSet makes that atomic.
  const std::string offer = group.value().toHex() + random.value().toHex();
  store_->compareSet("secret", std::string(), offer);
  TORCH_CHECK(waitForKeys(*store_, {"secret"}, timeout_), me(),
              ": the Store holds no group secret after ", timeout_.count(), " ms");
  const std::string text = store_->get_to_str("secret");
  constexpr std::size_t kHex = transport::AuthKey::kBytes * 2;
  TORCH_CHECK(text.size() == 2 * kHex, me(), ": the group secret in the Store is malformed");
  GroupSecret secret;
  secret.group_id = text.substr(0, kHex);
  auto key = key_file.empty() ? transport::AuthKey::fromHex(text.substr(kHex))
                              : transport::AuthKey::fromFile(key_file);
  TORCH_CHECK(key.ok(), me(), ": ", key.error().text());
  secret.key = key.value();
  secret.auth = key_file.empty() ? "store" : "file";
  if (!key_file.empty()) secret.key_check = transport::keyCheck(secret.key, secret.group_id);
  return secret;
}

void Membership::agreeOnKind() {
  const std::string mine = world_ == 0 ? "dynamic" : "static";
  const std::string kind = store_->compareSet("kind", std::string(), mine);
  TORCH_CHECK(kind == mine, me(),
              ": RPC group mixes statically and dynamically initialized members which is not "
              "supported. The group is ",
              kind, "; give world_size on all workers or on none.");
}

std::string Membership::endWith(const std::string& end) {
  return store_->compareSet(kOutcomeKey, std::string(), end);
}

void Membership::claimRank() {
  if (store_->add(claimKey(rank_), 1) == 1) return;
  const std::string why = "two workers were started with rank " + std::to_string(rank_) +
                          " (one of them is '" + name_ + "'); give every worker a rank of its own";
  endWith(why);
  TORCH_CHECK(false, why);
}

void Membership::waitFor(const std::vector<std::string>& keys,
                         const std::vector<std::int32_t>& ranks) {
  const auto started = waiting_since_;
  auto next_progress = steady_clock::now() + kProgressEvery;
  while (true) {
    const auto left =
        timeout_ - std::chrono::duration_cast<milliseconds>(steady_clock::now() - started);
    if (waitForKeys(*store_, keys, std::clamp(left, milliseconds(10), kSlice), started)) return;
    if (store_->check({kOutcomeKey})) {
      const std::string outcome = store_->get_to_str(kOutcomeKey);
      TORCH_CHECK(outcome == kFormed, outcome);
    }
    const auto now = steady_clock::now();
    const bool late = now - started >= timeout_;
    if (!late && (now < next_progress || (rank_ != 0 && world_ > kAllTell))) continue;
    next_progress += kProgressEvery;
    std::vector<std::int32_t> missing = absentRanks(*store_, ranks, memberKey);
    if (missing.empty() && !late) continue;
    if (missing.empty()) missing = {0};  // it collects the records
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - started);
    const std::string whom = (missing.size() == 1 ? "rank " : "ranks ") + c10::Join(", ", missing);
    TORCH_CHECK(!late, me(), " gave up waiting for ", whom, " of ", world_, " after ",
                waited.count(),
                " s. Either they were not started, or they cannot reach the Store, or they were "
                "started with another backend than WEFT or another world_size.");
    // For the person who waits at the terminal, whatever the log's level.
    std::fprintf(stderr, "weft: %s waits for %s (%lld s of %lld s)\n", me().c_str(), whom.c_str(),
                 static_cast<long long>(waited.count()),
                 static_cast<long long>(timeout_.count() / 1000));
  }
}

std::vector<std::int32_t> Membership::otherRanks() const {
  std::vector<std::int32_t> others;
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  return others;
}

// The group runs, and this worker was started again.
std::vector<MemberRecord> Membership::meetAgain(const MemberRecord& self) {
  const MemberRecord former = readRecords(*store_, {rank_}, me()).front();
  TORCH_CHECK(former.name == name_, me(), ": rank ", rank_, " of this group is worker '",
              former.name, "'; a worker that is started again keeps its rank and name");
  TORCH_CHECK(!transport::somebodyListens(former.address, kProbe), me(),
              ": the group already has a worker of rank ", rank_,
              ", and it lives; give every worker a rank of its own");
  // Before the others are read, so that of two that come back at once one sees the other.
  store_->set(memberKey(rank_), self.toText());
  returned_ = true;
  const std::vector<MemberRecord> members = readRecords(*store_, otherRanks(), me());
  checkMembers(self, members);
  return members;
}

std::vector<MemberRecord> Membership::meet(const MemberRecord& self) {
  checkReadable(self, me());
  agreeOnKind();
  if (store_->check({kOutcomeKey}) && store_->get_to_str(kOutcomeKey) == kFormed)
    return meetAgain(self);
  claimRank();
  store_->set(memberKey(rank_), self.toText());
  waiting_since_ = steady_clock::now();
  return rank_ == 0 ? collect(self) : follow(self);
}

std::vector<MemberRecord> Membership::readAndCheck(const MemberRecord& self,
                                                   const std::vector<std::int32_t>& ranks) {
  try {
    std::vector<MemberRecord> members = readRecords(*store_, ranks, me());
    checkMembers(self, members);
    return members;
  } catch (const c10::Error& error) {
    // Another worker may wait for ranks that never come, because its world_size is larger.
    endWith(error.what_without_backtrace());
    throw;
  }
}

std::vector<MemberRecord> Membership::collect(const MemberRecord& self) {
  const std::vector<std::int32_t> others = otherRanks();
  std::vector<std::string> keys;
  for (const std::int32_t rank : others)
    keys.push_back(memberKey(rank));
  if (!keys.empty()) waitFor(keys, others);
  const std::vector<MemberRecord> members = readAndCheck(self, others);
  std::vector<MemberRecord> all = members;
  all.insert(all.begin(), self);
  store_->set(kMembersKey, toText(all));
  const std::string outcome = endWith(kFormed);
  TORCH_CHECK(outcome == kFormed, outcome);
  return members;
}

std::vector<MemberRecord> Membership::follow(const MemberRecord& self) {
  const std::vector<std::int32_t> others = otherRanks();
  waitFor({memberKey(0)}, others);
  readAndCheck(self, {0});
  waitFor({kOutcomeKey}, others);
  const std::string outcome = store_->get_to_str(kOutcomeKey);
  TORCH_CHECK(outcome == kFormed, outcome);
  std::vector<MemberRecord> members = parseMembers(store_->get_to_str(kMembersKey), me());
  std::erase_if(members, [&](const MemberRecord& member) { return member.rank == rank_; });
  TORCH_CHECK(members.size() == others.size(), me(),
              ": the Store's list of the group's workers is malformed");
  return members;
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
    TORCH_CHECK(std::none_of(members.begin(), members.end(),
                             [&](const MemberRecord& member) { return member.rank == rank_; }),
                me(), ": the group already has a worker of rank ", rank_);
    checkMembers(self, members);
    others = members;
    members.push_back(self);
  });
  returned_ = store_->add(claimKey(rank_), 1) > 1;
  return others;
}

void Membership::forget(std::int32_t rank, const std::string& address) {
  updateMembers([&](std::vector<MemberRecord>& members) {
    std::erase_if(members, [&](const MemberRecord& member) {
      return member.rank == rank && member.address == address;
    });
  });
}

void Membership::restore(const MemberRecord& returned) {
  updateMembers([&](std::vector<MemberRecord>& members) {
    const bool there = std::any_of(members.begin(), members.end(), [&](const MemberRecord& member) {
      return member.rank == returned.rank;
    });
    if (!there) members.push_back(returned);
  });
}

}  // namespace weft::rpc
