// The Store as one group's workers see it: below a prefix, and with errors that say whose death
// they are. torch's TCPStore says "Broken pipe" when the process that serves it has ended.
//
// Any thread that may use a Store. What fails for another reason fails as torch has it.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <string>
#include <vector>

namespace weft::rpc {

class GroupStore : public c10d::PrefixStore {
 public:
  GroupStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store);

  // What Membership and ShutdownBarrier use. Each throws c10::DistNetworkError when the server is
  // gone, with its address.
  using c10d::PrefixStore::compareSet;
  using c10d::PrefixStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool check(const std::vector<std::string>& keys) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;

 private:
  template <typename Operation>
  auto named(Operation&& operation);

  const std::string server_;  // "127.0.0.1:29500 (usually rank 0)", as far as it is known
};

}  // namespace weft::rpc
