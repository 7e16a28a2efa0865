#include "rpc_backend/join/static_meeting.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>

#include "rpc_backend/join/store_access.h"
#include "transport/base/peer_name.h"
#include "transport/io/socket.h"

namespace weft::rpc {

using std::chrono::steady_clock;

namespace {

constexpr milliseconds kProgressEvery{5000};
constexpr milliseconds kSlice{250};   // how soon a waiting worker notices that the group can't form
constexpr milliseconds kProbe{1000};  // for a former life to answer
constexpr const char* kOutcomeKey = "outcome";
constexpr const char* kFormed = "formed";  // the outcome; any other is the reason why not
// In a larger group only rank 0 names the missing while all wait: each that does so asks the Store
// for all of them.
constexpr int kAllTell = 64;

std::string memberKey(std::int32_t rank) { return "member/" + std::to_string(rank); }

std::vector<std::string> memberKeys(const std::vector<std::int32_t>& ranks) {
  std::vector<std::string> keys;
  for (const std::int32_t rank : ranks)
    keys.push_back(memberKey(rank));
  return keys;
}

// In one round trip where the Store can do that: 64 workers that read each other one by one wait
// for 4,000 answers of one thread.
std::vector<MemberRecord> readRecords(c10d::Store& store, const std::vector<std::int32_t>& ranks,
                                      const std::string& who) {
  std::vector<MemberRecord> records;
  if (ranks.empty()) return records;
  const auto texts = store.multiGet(memberKeys(ranks));
  TORCH_CHECK(texts.size() == ranks.size(), who, ": the Store answered with ", texts.size(),
              " records instead of ", ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto record = MemberRecord::fromText({texts[i].begin(), texts[i].end()});
    TORCH_CHECK(record && record->rank == ranks[i], who, ": what rank ", ranks[i],
                " wrote into the Store is not a worker record");
    records.push_back(*record);
  }
  return records;
}

}  // namespace

std::string StaticMeeting::me() const { return transport::describePeer(self_.name, self_.rank); }

bool StaticMeeting::hasFormed() {
  return store_.check({kOutcomeKey}) && store_.get_to_str(kOutcomeKey) == kFormed;
}

void StaticMeeting::rejectDuplicate() {
  const std::string why = "two workers were started with rank " + std::to_string(self_.rank) +
                          " (one of them is '" + self_.name +
                          "'); give every worker a rank of its own";
  endWith(why);
  TORCH_CHECK(false, why);
}

std::string StaticMeeting::endWith(const std::string& end) {
  return store_.compareSet(kOutcomeKey, std::string(), end);
}

std::vector<MemberRecord> StaticMeeting::rejoin() {
  const MemberRecord former = readRecords(store_, {self_.rank}, me()).front();
  TORCH_CHECK(former.name == self_.name, me(), ": rank ", self_.rank, " of this group is worker '",
              former.name, "'; a worker that is started again keeps its rank and name");
  TORCH_CHECK(!transport::somebodyListens(former.address, kProbe), me(),
              ": the group already has a worker of rank ", self_.rank,
              ", which is alive; give every worker a rank of its own");
  // Before the others are read, so that of two that come back at once one sees the other.
  store_.set(memberKey(self_.rank), self_.toText());
  const std::vector<MemberRecord> members = readRecords(store_, otherRanks(), me());
  checkMembers(self_, members);
  return members;
}

std::vector<MemberRecord> StaticMeeting::form() {
  store_.set(memberKey(self_.rank), self_.toText());
  waiting_since_ = steady_clock::now();
  return self_.rank == 0 ? collect() : follow();
}

std::vector<MemberRecord> StaticMeeting::collect() {
  const std::vector<std::int32_t> others = otherRanks();
  if (!others.empty()) waitFor(memberKeys(others), others);
  const std::vector<MemberRecord> members = readAndCheck(others);
  std::vector<MemberRecord> all = members;
  all.insert(all.begin(), self_);
  store_.set(kMembersKey, toText(all));
  const std::string outcome = endWith(kFormed);
  TORCH_CHECK(outcome == kFormed, outcome);
  return members;
}

std::vector<MemberRecord> StaticMeeting::follow() {
  const std::vector<std::int32_t> others = otherRanks();
  waitFor({memberKey(0)}, others);
  readAndCheck({0});
  waitFor({kOutcomeKey}, others);
  const std::string outcome = store_.get_to_str(kOutcomeKey);
  TORCH_CHECK(outcome == kFormed, outcome);
  std::vector<MemberRecord> members = parseMembers(store_.get_to_str(kMembersKey), me());
  std::erase_if(members, [&](const MemberRecord& member) { return member.rank == self_.rank; });
  TORCH_CHECK(members.size() == others.size(), me(),
              ": the Store's list of the group's workers is malformed");
  return members;
}

std::vector<MemberRecord> StaticMeeting::readAndCheck(const std::vector<std::int32_t>& ranks) {
  try {
    std::vector<MemberRecord> members = readRecords(store_, ranks, me());
    checkMembers(self_, members);
    return members;
  } catch (const c10::Error& error) {
    // Another worker may wait for ranks that never come, because its world_size is larger.
    endWith(error.what_without_backtrace());
    throw;
  }
}

void StaticMeeting::waitFor(const std::vector<std::string>& keys,
                            const std::vector<std::int32_t>& ranks) {
  const auto started = waiting_since_;
  auto next_progress = steady_clock::now() + kProgressEvery;
  while (true) {
    const auto left =
        timeout_ - std::chrono::duration_cast<milliseconds>(steady_clock::now() - started);
    if (waitForKeys(store_, keys, std::clamp(left, milliseconds(10), kSlice), started)) return;
    if (store_.check({kOutcomeKey})) {
      const std::string outcome = store_.get_to_str(kOutcomeKey);
      TORCH_CHECK(outcome == kFormed, outcome);
    }
    const auto now = steady_clock::now();
    const bool late = now - started >= timeout_;
    if (!late && (now < next_progress || (self_.rank != 0 && self_.world > kAllTell))) continue;
    next_progress += kProgressEvery;
    std::vector<std::int32_t> missing = absentRanks(store_, ranks, memberKey);
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
