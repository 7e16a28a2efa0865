// Invitation: what rank 0 publishes in the Store about the memory that it gives to the other ranks.
// The Store is open to all who can reach it, so any text is an invitation or an error.
//
// Threads: any.
#pragma once

#include <string>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives::shm {

struct Invitation {
  std::string socket;            // the name of a Unix socket
  std::size_t buffer_bytes = 0;  // the layout's, as the next two
  std::size_t small_bytes = 0;
  std::size_t heap_bytes = 0;

  std::string toText() const;
  static Result<Invitation> fromText(const std::string& text);
};

}  // namespace weft::collectives::shm
