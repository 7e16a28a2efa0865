// How texts for people name a peer.
#pragma once

#include <cstdint>
#include <string>

#include "transport/base/duration_text.h"

namespace weft::transport {

inline std::string describePeer(const std::string& name, std::int32_t rank) {
  return "worker '" + name + "' (rank " + std::to_string(rank) + ")";
}

}  // namespace weft::transport
