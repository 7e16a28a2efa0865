// GroupSecret: the id of a group and the key by which its members know each other. They share both
// through a Store, or have the key from a file. A key in the Store is as safe from strangers as the
// Store.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "transport/auth/auth_key.h"

namespace weft::transport {

struct GroupSecret {
  std::string group_id;
  AuthKey key;
  bool from_file = false;  // the key is that of a file instead of the Store's
};

// A new secret as text, for the Store.
Result<std::string> newSecretText();
// kProtocol: it is not such a text.
Result<GroupSecret> parseSecret(std::string_view text);

}  // namespace weft::transport
