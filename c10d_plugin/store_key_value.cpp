#include "c10d_plugin/store_key_value.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "c10d_plugin/ranks_text.h"
#include "transport/log.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

Error StoreKeyValue::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
  } catch (const std::exception& failure) {
    return {ErrorCode::kSystem, "the Store did not take '" + key + "': " + failure.what()};
  }
  return Error::ok();
}

Result<std::string> StoreKeyValue::get(const std::string& key, steady_clock::time_point deadline) {
  // Looks again and again, rather than Store::wait(): TCPStore logs each wait that runs out.
  constexpr milliseconds kLongestNap{50};
  milliseconds nap{1};
  try {
    while (!store_->check({key})) {
      const auto now = steady_clock::now();
      // Compared, not subtracted: a deadline may be as early as time begins.
      if (now >= deadline) return Error(ErrorCode::kTimeout, "'" + key + "' is not in the Store");
      const auto left = std::chrono::ceil<milliseconds>(deadline - now);
      std::this_thread::sleep_for(std::min(nap, left));
      nap = std::min(nap * 2, kLongestNap);
    }
    return store_->get_to_str(key);
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kSystem, "the Store failed to give '" + key + "': " + failure.what());
  }
}

namespace {

// The ranks whose value is not there yet.
std::vector<int> missing(collectives::KeyValue& store, const std::string& topic,
                         const std::vector<bool>& have) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < have.size(); ++rank) {
    if (have[rank]) continue;
    if (store.get(topic + std::to_string(rank), steady_clock::now()).ok()) continue;
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

Result<std::vector<std::string>> exchange(collectives::KeyValue& store, const std::string& topic,
                                          const std::string& value, int rank, int size,
                                          steady_clock::time_point deadline) {
  constexpr std::chrono::seconds kPatience{10};  // then the missing are named, once
  const std::string prefix = topic + "/";
  if (Error failed = store.set(prefix + std::to_string(rank), value)) return failed;
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<bool> have(said.size(), false);
  auto next_remark = steady_clock::now() + kPatience;
  for (std::size_t other = 0; other < said.size(); ++other) {
    while (!have[other]) {
      auto got = store.get(prefix + std::to_string(other), std::min(deadline, next_remark));
      if (got.ok()) {
        said[other] = std::move(got).value();
        have[other] = true;
        break;
      }
      if (got.error().code() != ErrorCode::kTimeout) return got.error();
      const std::vector<int> absent = missing(store, prefix, have);
      if (steady_clock::now() >= deadline) {
        return Error(
            ErrorCode::kTimeout,
            "Timed out waiting for " + collectives::ranksAsText(absent) + " to form the group");
      }
      if (!absent.empty()) {
        transport::log(transport::LogLevel::kWarning,
                       "process group: rank " + std::to_string(rank) + " is waiting for " +
                           collectives::ranksAsText(absent));
      }
      next_remark = steady_clock::now() + kPatience;
    }
  }
  return said;
}

}  // namespace weft::process_group
