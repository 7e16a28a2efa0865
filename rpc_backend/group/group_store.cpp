#include "rpc_backend/group/group_store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace weft::rpc {

namespace {

std::string serverOf(c10d::Store& store) {
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(&store);
  if (tcp == nullptr) return "(usually rank 0)";
  return "at " + tcp->getHost() + ":" + std::to_string(tcp->getPort()) + " (usually rank 0)";
}

}  // namespace

GroupStore::GroupStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store)
    : c10d::PrefixStore(std::move(prefix), std::move(store)),
      server_(serverOf(*getUnderlyingNonPrefixStore())) {}

template <typename Operation>
auto GroupStore::named(Operation&& operation) {
  try {
    return operation();
  } catch (const c10::DistNetworkError& error) {
    C10_THROW_ERROR(DistNetworkError,
                    "the process that serves the Store " + server_ +
                        " has ended or closed the connection (" + error.what_without_backtrace() +
                        "); without it workers can neither form a group nor agree to end one");
  }
}

void GroupStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  named([&] { c10d::PrefixStore::set(key, value); });
}

std::vector<uint8_t> GroupStore::compareSet(const std::string& key,
                                            const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  return named([&] { return c10d::PrefixStore::compareSet(key, expected, desired); });
}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  return named([&] { return c10d::PrefixStore::get(key); });
}

int64_t GroupStore::add(const std::string& key, int64_t value) {
  return named([&] { return c10d::PrefixStore::add(key, value); });
}

bool GroupStore::check(const std::vector<std::string>& keys) {
  return named([&] { return c10d::PrefixStore::check(keys); });
}

std::vector<std::vector<uint8_t>> GroupStore::multiGet(const std::vector<std::string>& keys) {
  return named([&] { return c10d::PrefixStore::multiGet(keys); });
}

}  // namespace weft::rpc
