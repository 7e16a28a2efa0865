// KeyValue: the few words that the processes of a group exchange before they can send each other
// messages. Behind it is torch's c10d Store in a program, a folder in the tests.
//
// Whoever makes one gives each group a name space of its own (a prefix), so that keys never meet.
//
// Threads: one at a time. Failure: an Error, never an exception.
#pragma once

#include <chrono>
#include <string>

#include "transport/base/error.h"

namespace weft::collectives {

class KeyValue {
 public:
  virtual ~KeyValue() = default;

  virtual transport::Error set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; kTimeout when it is not by the deadline.
  virtual transport::Result<std::string> get(const std::string& key,
                                             std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace weft::collectives
