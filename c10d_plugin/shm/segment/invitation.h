// Invitation: what rank 0 publishes in the Store about the memory that it gives to the other ranks.
// The Store is open to all who can reach it, so any text is an invitation or an error.
//
// Threads: any.
#pragma once

#include <string>

#include "c10d_plugin/core/collectives.h"
#include "transport/auth/auth_key.h"

namespace weft::collectives::shm {

struct Invitation {
  std::string socket;  // the name of a Unix socket
  transport::AuthKey secret;
  bool publishes_secret = true;  // false: it is made from the group's key and the socket's name
  std::size_t buffer_bytes = 0;  // the layout's, as the next two
  std::size_t small_bytes = 0;
  std::size_t heap_bytes = 0;

  std::string toText() const;
  // `key`: the group's; not valid: there is none.
  static Result<Invitation> fromText(const std::string& text, const transport::AuthKey& key);
};

// The secret of a group that has a key.
Result<transport::AuthKey> secretFrom(const transport::AuthKey& key, const std::string& socket);

}  // namespace weft::collectives::shm
