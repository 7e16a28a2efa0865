// An all-gather through a Store: every process of a group sets a value, the first process collects
// all values and sets them in one piece, and all read that. So each of the others exchanges as many
// messages with the Store in a large group as in a small one.
//
// Threads: one at a time. Every wait is bounded; after 10 s a log line names the missing ranks.
// Failure: kTimeout names the ranks that said nothing; else the Store's error.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

// Sets `topic`/`rank` to `value` and returns what all of `ranks` said there, in their order.
transport::Result<std::vector<std::string>> storeAllGather(KeyValue& store,
                                                           const std::string& topic,
                                                           const std::string& value, int rank,
                                                           const std::vector<int>& ranks,
                                                           Deadline deadline);

// The keys under which `ranks` say something about `topic`.
std::vector<std::string> topicKeys(const std::string& topic, const std::vector<int>& ranks);
// The ranks of `ranks` that have said nothing about the topic. Asks the store once for each.
std::vector<int> silentRanks(KeyValue& store, const std::string& topic,
                             const std::vector<int>& ranks);

// A rank that may warn logs for whom it waits, whenever this much more time has passed.
constexpr std::chrono::seconds kWarnAfter{10};
bool mayWarn(int rank, const std::vector<int>& ranks);
void warnOfSilence(const KeyValue& store, int rank, const std::vector<int>& silent);
// What a rank's wait for these ends with when its time is up.
transport::Error notCome(const std::vector<int>& ranks);

// Several texts in one, and back. Nothing where the text is not so made.
std::string joinTexts(const std::vector<std::string>& texts);
std::optional<std::vector<std::string>> splitTexts(const std::string& joined);

// Each rank says what went wrong there, if anything. "rank 2: <its problem>" of the first that has
// one; empty: all is well everywhere. The same on all ranks.
transport::Result<std::string> firstProblem(KeyValue& store, const std::string& topic,
                                            const transport::Error& own, int rank,
                                            const std::vector<int>& ranks, Deadline deadline);

}  // namespace weft::collectives
