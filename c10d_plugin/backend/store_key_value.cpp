#include "c10d_plugin/backend/store_key_value.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "transport/base/interruption.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

// A TCPStore's error is "Broken pipe" when the process that serves it has ended.
std::string reasonOf(const std::exception& failure) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&failure);
  const std::string text = torchs == nullptr ? failure.what() : torchs->what_without_backtrace();
  if (dynamic_cast<const c10::DistNetworkError*>(&failure) == nullptr) return text;
  return "the process that serves it (usually rank 0) has ended or closed the connection (" + text +
         ")";
}

}  // namespace

Error StoreKeyValue::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
  } catch (const std::exception& failure) {
    return {ErrorCode::kSystem, "cannot write '" + key + "' to the Store: " + reasonOf(failure)};
  }
  return Error::ok();
}

Error StoreKeyValue::await(const std::vector<std::string>& keys, transport::Deadline deadline) {
  // Polls instead of Store::wait(): TCPStore logs a warning for each wait that times out.
  constexpr milliseconds kLongestNap{50};
  milliseconds nap{1};
  const std::string what =
      "'" + keys.front() + (keys.size() > 1 ? "' and others" : "'");  // one of many
  while (!store_->check(keys)) {
    const auto now = steady_clock::now();
    // Compared, not subtracted: the difference to a very early deadline overflows.
    if (now >= deadline) return {ErrorCode::kTimeout, what + " is not in the Store"};
    if (transport::interrupted()) {
      return {ErrorCode::kInterrupted,
              "the wait for " + what + " in the Store was " + collectives::kInterrupted};
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - now);
    std::this_thread::sleep_for(std::min(nap, left));
    nap = std::min(nap * 2, kLongestNap);
  }
  return Error::ok();
}

Result<std::string> StoreKeyValue::get(const std::string& key, transport::Deadline deadline) {
  try {
    if (Error error = await({key}, deadline)) return error;
    return store_->get_to_str(key);
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kSystem,
                 "cannot read '" + key + "' from the Store: " + reasonOf(failure));
  }
}

Result<std::vector<std::string>> StoreKeyValue::getAll(const std::vector<std::string>& keys,
                                                       transport::Deadline deadline) {
  std::vector<std::string> values;
  if (keys.empty()) return values;
  try {
    if (Error error = await(keys, deadline)) return error;
    for (const auto& value : store_->multiGet(keys))
      values.emplace_back(value.begin(), value.end());
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kSystem,
                 "cannot read '" + keys.front() + "' from the Store: " + reasonOf(failure));
  }
  if (values.size() != keys.size())
    return Error(ErrorCode::kSystem, "the Store returned fewer values than were read");
  return values;
}

}  // namespace weft::process_group
