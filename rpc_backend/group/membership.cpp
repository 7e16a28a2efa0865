#include "rpc_backend/group/membership.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <thread>

#include "rpc_backend/core/log.h"
#include "rpc_backend/group/group_store.h"
#include "rpc_backend/group/store_wait.h"
#include "transport/auth/key_check.h"
#include "transport/io/probe.h"

namespace weft::rpc {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kProgressEvery{5000};
constexpr milliseconds kSlice{250};  // how soon a waiting worker notices that the group can't form
constexpr milliseconds kUnboundedReplacement{30 * 60 * 1000};  // for a Store without timeout
constexpr milliseconds kLockPoll{20};
constexpr milliseconds kProbe{1000};  // for a former life to answer
// A holder of the lock does a handful of Store operations; one that died must not block
// the group for ever.
constexpr milliseconds kLockLease{30000};

std::string memberKey(std::int32_t rank) { return "member/" + std::to_string(rank); }

std::string listRanks(const std::vector<std::int32_t>& ranks) {
  std::ostringstream out;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    out << (i == 0 ? "" : ", ") << ranks[i];
  return out.str();
}

// `who` reads, in errors.
MemberRecord parseRecord(std::int32_t rank, const std::string& text, const std::string& who) {
  const auto record = MemberRecord::fromText(text);
  TORCH_CHECK(record && record->rank == rank, who, ": what rank ", rank,
              " wrote into the Store is no worker record");
  return *record;
}

// Of workers whose records are there. In one round trip where the Store can do that: 64 workers
// that read each other one by one wait for 4,000 answers of one thread.
std::vector<MemberRecord> readRecords(c10d::Store& store, const std::vector<std::int32_t>& ranks,
                                      const std::string& who) {
  std::vector<MemberRecord> records;
  records.reserve(ranks.size());
  if (ranks.empty()) return records;
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const std::int32_t rank : ranks)
    keys.push_back(memberKey(rank));
  if (!store.hasExtendedApi()) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      records.push_back(parseRecord(ranks[i], store.get_to_str(keys[i]), who));
    return records;
  }
  const auto texts = store.multiGet(keys);
  TORCH_CHECK(texts.size() == ranks.size(), who, ": the Store answered with ", texts.size(),
              " records instead of ", ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    records.push_back(parseRecord(ranks[i], {texts[i].begin(), texts[i].end()}, who));
  return records;
}

}  // namespace

Membership::Membership(c10::intrusive_ptr<c10d::Store> store, std::string name, std::int32_t rank,
                       int world)
    : store_(c10::make_intrusive<GroupStore>("weft", store)),
      name_(std::move(name)),
      rank_(rank),
      world_(world),
      timeout_(store->getTimeout().count() > 0 ? store->getTimeout() : kUnboundedReplacement) {
  TORCH_CHECK_VALUE(rank_ >= 0, "worker '", name_, "': rank must not be negative, got ", rank_);
  TORCH_CHECK_VALUE(world_ == 0 || rank_ < world_, "worker '", name_, "': rank ", rank_,
                    " is out of range for world_size ", world_, "; ranks go from 0 to ",
                    world_ - 1);
}

std::string Membership::me() const {
  return "worker '" + name_ + "' (rank " + std::to_string(rank_) + ")";
}

GroupSecret Membership::secret(const std::string& key_file) {
  auto random = transport::AuthKey::random();
  auto group = transport::AuthKey::random();
  TORCH_CHECK(random.ok() && group.ok(), me(), ": no random numbers from the system");
  // The first to come decides; compareSet makes that atomic, whichever rank it is.
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

void Membership::abort(const std::string& why) {
  store_->set("abort", why);
  TORCH_CHECK(false, why);
}

void Membership::throwIfAborted() {
  if (store_->check({"abort"})) TORCH_CHECK(false, store_->get_to_str("abort"));
}

void Membership::claimRank() {
  if (store_->add("claim/" + std::to_string(rank_), 1) == 1) return;
  abort("two workers were started with rank " + std::to_string(rank_) + " (one of them is '" +
        name_ + "'); give every worker a rank of its own");
}

void Membership::waitFor(const std::vector<std::int32_t>& ranks) {
  const auto started = steady_clock::now();
  auto next_progress = started + kProgressEvery;
  std::vector<std::int32_t> missing = ranks;
  while (true) {
    std::vector<std::string> keys;
    for (const std::int32_t rank : missing)
      keys.push_back(memberKey(rank));
    const auto left =
        timeout_ - std::chrono::duration_cast<milliseconds>(steady_clock::now() - started);
    const bool all_there = waitForKeys(*store_, keys, std::clamp(left, milliseconds(10), kSlice));
    throwIfAborted();
    if (all_there) return;
    const auto now = steady_clock::now();
    if (now - started < timeout_ && now < next_progress) continue;
    next_progress += kProgressEvery;
    std::erase_if(missing, [&](std::int32_t rank) { return store_->check({memberKey(rank)}); });
    if (missing.empty()) return;
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - started);
    const std::string whom = (missing.size() == 1 ? "rank " : "ranks ") + listRanks(missing);
    TORCH_CHECK(now - started < timeout_, me(), " gave up waiting for ", whom, " of ", world_,
                " after ", waited.count(),
                " s. Either they were not started, or they cannot reach the Store, or they were "
                "started with another backend than WEFT or another world_size.");
    progressLine(me() + " waits for " + whom + " (" + std::to_string(waited.count()) + " s of " +
                 std::to_string(timeout_.count() / 1000) + " s)");
  }
}

MemberRecord Membership::read(std::int32_t rank) {
  return parseRecord(rank, store_->get_to_str(memberKey(rank)), me());
}

void Membership::check(const MemberRecord& self, const std::vector<MemberRecord>& members) {
  std::vector<const MemberRecord*> all{&self};
  for (const MemberRecord& member : members) {
    if (member.rank != self.rank) all.push_back(&member);
  }
  // Ordered, so that every worker reports the same pair in the same words.
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  const MemberRecord& first = *all.front();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const MemberRecord& other = *all[i];
    const auto who = [&] {
      return c10::str("worker '", other.name, "' (rank ", other.rank, ") and worker '", first.name,
                      "' (rank ", first.rank, ")");
    };
    for (std::size_t j = 0; j < i; ++j) {
      TORCH_CHECK(all[j]->name != other.name, "RPC worker name '", other.name,
                  "' is not unique. Workers of rank ", all[j]->rank, " and ", other.rank,
                  " have the same name; give every worker a name of its own.");
    }
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

// The group runs, and this worker was started again.
std::vector<MemberRecord> Membership::meetAgain(const MemberRecord& self) {
  const MemberRecord former = read(rank_);
  TORCH_CHECK(former.name == name_, me(), ": rank ", rank_, " of this group is worker '",
              former.name, "'; a worker that is started again keeps its rank and name");
  TORCH_CHECK(!transport::somebodyListens(former.address, kProbe), me(),
              ": the group already has a worker of rank ", rank_,
              ", and it lives; give every worker a rank of its own");
  // First, so that of two that come back at the same time one sees the other.
  store_->set(memberKey(rank_), self.toText());
  returned_ = true;
  std::vector<std::int32_t> others;
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  const std::vector<MemberRecord> members = readRecords(*store_, others, me());
  check(self, members);
  return members;
}

std::vector<MemberRecord> Membership::meet(const MemberRecord& self) {
  agreeOnKind();
  if (store_->check({"formed"})) return meetAgain(self);
  claimRank();
  store_->set(memberKey(rank_), self.toText());
  std::vector<std::int32_t> others;
  for (std::int32_t rank = 0; rank < world_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  if (!others.empty()) waitFor(others);
  std::vector<MemberRecord> members;
  try {
    members = readRecords(*store_, others, me());
    check(self, members);
  } catch (const c10::Error& error) {
    // Somebody may wait for workers that will never come, because it expects more of them.
    store_->set("abort", error.what_without_backtrace());
    throw;
  }
  store_->set("formed", "1");
  return members;
}

void Membership::locked(const std::function<void()>& body) {
  const std::string token = name_ + "/" + std::to_string(rank_) + "/" +
                            std::to_string(steady_clock::now().time_since_epoch().count());
  const auto started = steady_clock::now();
  std::string holder;
  auto holder_since = started;
  while (true) {
    const std::string now_held = store_->compareSet("lock", std::string(), token);
    if (now_held == token) break;
    if (now_held != holder) {
      holder = now_held;
      holder_since = steady_clock::now();
    }
    if (!holder.empty() && steady_clock::now() - holder_since > kLockLease) {
      logWarning("the group's membership lock was held by '" + holder +
                 "' for over 30 s; taking it");
      store_->compareSet("lock", holder, std::string("free"));
    }
    if (now_held == "free" && store_->compareSet("lock", now_held, token) == token) break;
    TORCH_CHECK(steady_clock::now() - started < timeout_, me(),
                ": could not get the group's membership lock within ", timeout_.count(),
                " ms; it is held by '", holder, "'");
    std::this_thread::sleep_for(kLockPoll);
  }
  try {
    body();
  } catch (...) {
    store_->compareSet("lock", token, std::string("free"));
    throw;
  }
  store_->compareSet("lock", token, std::string("free"));
}

std::vector<std::int32_t> Membership::memberRanks() {
  std::vector<std::int32_t> ranks;
  if (!store_->check({"members"})) return ranks;
  std::istringstream in(store_->get_to_str("members"));
  for (std::int32_t rank = 0; in >> rank;)
    ranks.push_back(rank);
  return ranks;
}

void Membership::setMemberRanks(const std::vector<std::int32_t>& ranks) {
  std::ostringstream out;
  for (const std::int32_t rank : ranks)
    out << rank << ' ';
  store_->set("members", out.str() + ".");
}

std::vector<MemberRecord> Membership::join(const MemberRecord& self) {
  agreeOnKind();
  std::vector<MemberRecord> members;
  locked([&] {
    auto ranks = memberRanks();
    TORCH_CHECK(std::find(ranks.begin(), ranks.end(), rank_) == ranks.end(), me(),
                ": the group already has a worker of rank ", rank_);
    members = readRecords(*store_, ranks, me());
    check(self, members);
    returned_ = store_->check({memberKey(rank_)});
    store_->set(memberKey(rank_), self.toText());
    ranks.push_back(rank_);
    setMemberRanks(ranks);
  });
  return members;
}

void Membership::erase(std::int32_t rank) {
  auto ranks = memberRanks();
  std::erase(ranks, rank);
  setMemberRanks(ranks);
}

void Membership::forget(std::int32_t rank, const std::string& address) {
  locked([&] {
    if (read(rank).address == address) erase(rank);
  });
}

void Membership::leave() {
  locked([&] { erase(rank_); });
}

}  // namespace weft::rpc
