// KeyValue over a c10d Store, and the start of a group: every rank says something, all read it.
//
// Threads: one at a time. Every wait is bounded; a slow start tells who is missing.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "c10d_plugin/key_value.h"

namespace weft::process_group {

class StoreKeyValue final : public collectives::KeyValue {
 public:
  explicit StoreKeyValue(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  transport::Error set(const std::string& key, const std::string& value) override;
  transport::Result<std::string> get(const std::string& key,
                                     std::chrono::steady_clock::time_point deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Sets `topic`/`rank` to `value` and returns what all ranks said there, by rank. kTimeout names the
// ranks that said nothing.
transport::Result<std::vector<std::string>> exchange(
    collectives::KeyValue& store, const std::string& topic, const std::string& value, int rank,
    int size, std::chrono::steady_clock::time_point deadline);

}  // namespace weft::process_group
