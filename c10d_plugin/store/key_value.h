// KeyValue: the few words that the processes of a group exchange before they can send each other
// messages. A program has torch's c10d Store behind it, the tests have a folder.
//
// Each group has a name space of its own (torch's PrefixStore), and in it the ranks of each host
// (Prefixed), so that keys never meet.
//
// Threads: one at a time. Failure: an Error, never an exception.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transport/base/deadline.h"
#include "transport/base/error.h"

namespace weft::collectives {

using transport::Deadline;
using transport::deadlineAfter;

class KeyValue {
 public:
  virtual ~KeyValue() = default;

  virtual transport::Error set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; kTimeout when it is not by the deadline.
  virtual transport::Result<std::string> get(const std::string& key, Deadline deadline) = 0;
  // Several, in their order, by one question where the store can answer that.
  virtual transport::Result<std::vector<std::string>> getAll(const std::vector<std::string>& keys,
                                                             Deadline deadline) {
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      auto value = get(key, deadline);
      if (!value.ok()) return value.error();
      values.push_back(std::move(value).value());
    }
    return values;
  }
  // The group that meets here, for log lines.
  virtual std::string title() const { return "process group"; }
};

// Another one's keys that begin with `prefix`.
class Prefixed final : public KeyValue {
 public:
  Prefixed(KeyValue& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  transport::Error set(const std::string& key, const std::string& value) override {
    return store_.set(prefix_ + key, value);
  }
  transport::Result<std::string> get(const std::string& key, Deadline deadline) override {
    return store_.get(prefix_ + key, deadline);
  }
  transport::Result<std::vector<std::string>> getAll(const std::vector<std::string>& keys,
                                                     Deadline deadline) override {
    std::vector<std::string> prefixed;
    for (const std::string& key : keys)
      prefixed.push_back(prefix_ + key);
    return store_.getAll(prefixed, deadline);
  }
  std::string title() const override { return store_.title(); }

 private:
  KeyValue& store_;
  const std::string prefix_;
};

}  // namespace weft::collectives
