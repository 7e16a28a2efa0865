// GroupSecret: the id of a group and the key by which its workers know each other.
//
// Threads: any that may wait for the Store. Failure: throws c10::Error.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "rpc_backend/core/torch_names.h"
#include "transport/auth/auth_key.h"

namespace weft::rpc {

struct GroupSecret {
  std::string group_id;
  transport::AuthKey key;
  std::string auth;       // "file" or "store"
  std::string key_check;  // of a key from a file: transport::keyCheck
};

// All workers get the same from the Store, whoever of them comes first. The key is that of
// `key_file` when one is named, else the Store's. `who` asks, for messages.
GroupSecret agreeOnSecret(c10d::Store& store, const std::string& key_file, milliseconds timeout,
                          const std::string& who);

}  // namespace weft::rpc
