// Which address of this host to listen on: the one by which the others reach it.
#pragma once

#include <string>

#include "transport/base/api.h"
#include "transport/base/error.h"

namespace weft::transport {

struct ListenChoice {
  std::string address;  // numeric, for EndpointOptions::listen_address
  std::string note;     // not empty: something the user should be told once, as a warning
};

// `wanted`, when not empty, decides: the name of an interface ("eth0") or a numeric address of this
// host; an Error names those there are. Else the address from which `master_host` is reached; when
// that is this host itself (or empty), see the note in the result. May resolve names and so take
// seconds: not for the loop thread.
WEFT_API Result<ListenChoice> chooseListenAddress(const std::string& master_host,
                                                  const std::string& wanted);

}  // namespace weft::transport
