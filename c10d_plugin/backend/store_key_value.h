// KeyValue over a c10d Store.
//
// Threads: one at a time. Every wait is bounded as long as the process that serves the Store runs;
// where it is stopped, a question to it does not return.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"

namespace weft::process_group {

class StoreKeyValue final : public collectives::KeyValue {
 public:
  StoreKeyValue(c10::intrusive_ptr<c10d::Store> store, std::string title)
      : store_(std::move(store)), title_(std::move(title)) {}

  transport::Error set(const std::string& key, const std::string& value) override;
  transport::Result<std::string> get(const std::string& key, transport::Deadline deadline) override;
  transport::Result<std::vector<std::string>> getAll(const std::vector<std::string>& keys,
                                                     transport::Deadline deadline) override;
  std::string title() const override { return title_; }

 private:
  transport::Error await(const std::vector<std::string>& keys, transport::Deadline deadline);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::string title_;
};

}  // namespace weft::process_group
