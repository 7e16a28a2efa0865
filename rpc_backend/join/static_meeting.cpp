#include "rpc_backend/join/static_meeting.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "rpc_backend/join/store_access.h"
#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/io/socket.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {

constexpr milliseconds kProgressEvery{5000};
constexpr milliseconds kSlice{250};   // how soon a waiting worker notices that the group can't form
constexpr milliseconds kProbe{5000};  // for a member to answer; longer than a lost packet costs
constexpr const char* kOutcomeKey = "outcome";
constexpr const char* kFormed = "formed";  // the outcome
constexpr const char* kOver = "over";  // another meeting follows; any other: why none can be formed
// In a larger group only rank 0 names the missing while all wait: each that does so asks the Store
// for all of them.
constexpr int kAllTell = 64;

std::string memberKey(std::int32_t rank) { return "member/" + std::to_string(rank); }
std::string readyKey(std::int32_t rank) { return "ready/" + std::to_string(rank); }

std::vector<std::string> keysOf(const std::vector<std::int32_t>& ranks,
                                std::string (*key_of)(std::int32_t)) {
  std::vector<std::string> keys;
  for (const std::int32_t rank : ranks)
    keys.push_back(key_of(rank));
  return keys;
}

MemberRecord parseRecord(const std::string& text, std::int32_t rank, const std::string& who) {
  const auto record = MemberRecord::fromText(text);
  TORCH_CHECK(record && record->rank == rank, who, ": what rank ", rank,
              " wrote into the Store is not a worker record");
  return *record;
}

// In one round trip where the Store can do that: 64 workers that read each other one by one wait
// for 4,000 answers of one thread.
std::vector<MemberRecord> readRecords(c10d::Store& store, const std::vector<std::int32_t>& ranks,
                                      const std::string& who) {
  std::vector<MemberRecord> records;
  if (ranks.empty()) return records;
  const auto texts = store.multiGet(keysOf(ranks, memberKey));
  TORCH_CHECK(texts.size() == ranks.size(), who, ": the Store answered with ", texts.size(),
              " records instead of ", ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    records.push_back(parseRecord({texts[i].begin(), texts[i].end()}, ranks[i], who));
  return records;
}

}  // namespace

std::string StaticMeeting::me() const { return transport::describePeer(self_.name, self_.rank); }

std::vector<MemberRecord> StaticMeeting::run() {
  int meeting = 0;
  for (choose(meeting); outcome() == kOver; choose(meeting))
    ++meeting;
  std::optional<Members> others = attend(/*is_first=*/true);
  while (!others) {
    choose(++meeting);
    others = attend(/*is_first=*/false);
  }
  return *std::move(others);
}

void StaticMeeting::choose(int meeting) {
  store_ = root_;
  if (meeting > 0)
    store_ = c10::make_intrusive<c10d::PrefixStore>("again/" + std::to_string(meeting), root_);
}

std::optional<StaticMeeting::Members> StaticMeeting::attend(bool is_first) {
  for (std::string end = outcome(); end != kOver; end = outcome()) {
    const std::string holder = store_->compareSet(memberKey(self_.rank), std::string(), text_);
    if (holder == text_ && end != kFormed) return self_.rank == 0 ? collect() : follow();
    if (holder != text_) refuseIfAlive(holder, end, is_first);
    if (end != kFormed || !anotherLives()) {
      store_->compareSet(kOutcomeKey, end, kOver);
    } else if (auto others = rejoin(holder)) {
      return others;
    }
  }
  return std::nullopt;
}

std::optional<StaticMeeting::Members> StaticMeeting::rejoin(const std::string& holder) {
  // If nobody had this rank's record, the group is smaller: its members' records say so below.
  if (holder != text_) {
    const std::string name = parseRecord(holder, self_.rank, me()).name;
    TORCH_CHECK(name == self_.name, me(), ": rank ", self_.rank, " of this group is worker '", name,
                "'; a worker that is started again keeps its rank and name");
    if (store_->compareSet(memberKey(self_.rank), holder, text_) != text_) return std::nullopt;
  }
  // Whoever found nobody alive before this record was there has ended the meeting.
  if (outcome() == kOver) return std::nullopt;
  was_restarted_ = true;
  // After this one's record is there, so that of two that come back at once one sees the other.
  Members members = readFormed();
  checkMembers(self_, members);
  return members;
}

void StaticMeeting::refuseIfAlive(const std::string& holder, const std::string& outcome,
                                  bool is_first) {
  // One that has come since this worker ended the meeting before, or waited in it, lives.
  if (is_first && !isAlive(parseRecord(holder, self_.rank, me()))) return;
  TORCH_CHECK(outcome != kFormed, me(), ": the group already has a worker of rank ", self_.rank,
              ", which is alive; give every worker a rank of its own");
  const std::string why = "two workers were started with rank " + std::to_string(self_.rank) +
                          " (one of them is '" + self_.name +
                          "'); give every worker a rank of its own";
  endWith(why);
  TORCH_CHECK(false, why);
}

bool StaticMeeting::anotherLives() {
  std::vector<std::string> addresses;
  for (const MemberRecord& member : readFormed())
    addresses.push_back(member.address);
  return transport::somebodyListens(addresses, kProbe);
}

std::vector<MemberRecord> StaticMeeting::readFormed() {
  std::vector<std::int32_t> ranks;
  for (const MemberRecord& member : parseMembers(store_->get_to_str(kMembersKey), me())) {
    if (member.rank != self_.rank) ranks.push_back(member.rank);
  }
  return readRecords(*store_, ranks, me());
}

std::string StaticMeeting::outcome() {
  return store_->check({kOutcomeKey}) ? store_->get_to_str(kOutcomeKey) : std::string();
}

std::string StaticMeeting::endWith(const std::string& end) {
  return store_->compareSet(kOutcomeKey, std::string(), end);
}

std::optional<StaticMeeting::Members> StaticMeeting::collect() {
  const std::vector<std::int32_t> others = otherRanks();
  // A record alone may be of a worker that ended before this one came.
  if (!others.empty() && !waitFor(keysOf(others, readyKey), others)) return std::nullopt;
  const Members members = readAndCheck(others);
  std::vector<MemberRecord> all = members;
  all.insert(all.begin(), self_);
  store_->set(kMembersKey, toText(all));
  const std::string end = endWith(kFormed);
  if (end == kOver) return std::nullopt;
  TORCH_CHECK(end == kFormed, transport::printable(end));
  return members;
}

std::optional<StaticMeeting::Members> StaticMeeting::follow() {
  const std::vector<std::int32_t> others = otherRanks();
  if (!waitFor({memberKey(0)}, others)) return std::nullopt;
  readAndCheck({0});
  store_->set(readyKey(self_.rank), std::string("ready"));
  if (!waitFor({kOutcomeKey}, others)) return std::nullopt;
  const std::string end = outcome();
  if (end == kOver) return std::nullopt;
  TORCH_CHECK(end == kFormed, transport::printable(end));
  Members members = parseMembers(store_->get_to_str(kMembersKey), me());
  std::erase_if(members, [&](const MemberRecord& member) { return member.rank == self_.rank; });
  TORCH_CHECK(members.size() == others.size(), me(),
              ": the Store's list of the group's workers is malformed");
  return members;
}

bool StaticMeeting::isLeftBehind(const MemberRecord& first) {
  return first.rank == 0 && first.world != self_.world && outcome().empty() && !isAlive(first);
}

std::vector<MemberRecord> StaticMeeting::readAndCheck(const std::vector<std::int32_t>& ranks) {
  try {
    Members members = readRecords(*store_, ranks, me());
    if (members.empty() || !isLeftBehind(members.front())) checkMembers(self_, members);
    return members;
  } catch (const c10::Error& error) {
    // Another worker may wait for ranks that never come, because its world_size is larger.
    endWith(error.what_without_backtrace());
    throw;
  }
}

bool StaticMeeting::waitFor(const std::vector<std::string>& keys,
                            const std::vector<std::int32_t>& ranks) {
  const auto started = waiting_since_;
  auto next_progress = steady_clock::now() + kProgressEvery;
  while (true) {
    const auto left =
        timeout_ - std::chrono::duration_cast<milliseconds>(steady_clock::now() - started);
    if (waitForKeys(*store_, keys, std::clamp(left, milliseconds(10), kSlice), started))
      return true;
    const std::string end = outcome();
    if (end == kOver) return false;
    TORCH_CHECK(end.empty() || end == kFormed, end);
    const auto now = steady_clock::now();
    const bool late = now - started >= timeout_;
    if (!late && (now < next_progress || (self_.rank != 0 && self_.world > kAllTell))) continue;
    next_progress += kProgressEvery;
    std::vector<std::int32_t> missing =
        absentRanks(*store_, ranks, self_.rank == 0 ? readyKey : memberKey);
    if (missing.empty() && !late) continue;
    if (missing.empty()) missing = {0};  // it collects the records
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - started);
    const std::string whom = (missing.size() == 1 ? "rank " : "ranks ") + c10::Join(", ", missing);
    TORCH_CHECK(!late, me(), " gave up waiting for ", whom, " of ", self_.world, " after ",
                waited.count(),
                " s. Either they were not started, or they cannot reach the Store, or they were "
                "started with another backend than WEFT or another world_size.");
    // For the person who waits at the terminal, whatever the log's level.
    std::fprintf(stderr, "weft: %s waits for %s (%lld s of %lld s)\n", me().c_str(), whom.c_str(),
                 static_cast<long long>(waited.count()),
                 static_cast<long long>(timeout_.count() / 1000));
  }
}

std::vector<std::int32_t> StaticMeeting::otherRanks() const {
  std::vector<std::int32_t> others;
  for (std::int32_t rank = 0; rank < self_.world; ++rank) {
    if (rank != self_.rank) others.push_back(rank);
  }
  return others;
}

}  // namespace weft::rpc
