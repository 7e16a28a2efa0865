// KeyValue: the few words that the processes of a group exchange before they can send each other
// messages. A program has torch's c10d Store behind it, the tests have a folder.
//
// Each group has a name space of its own (Prefixed), so that keys never meet.
//
// Threads: one at a time. Failure: an Error, never an exception.
#pragma once

#include <string>
#include <utility>

#include "transport/base/deadline.h"
#include "transport/base/error.h"

namespace weft::collectives {

class KeyValue {
 public:
  virtual ~KeyValue() = default;

  virtual transport::Error set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; kTimeout when it is not by the deadline.
  virtual transport::Result<std::string> get(const std::string& key, Deadline deadline) = 0;
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

 private:
  KeyValue& store_;
  const std::string prefix_;
};

}  // namespace weft::collectives
