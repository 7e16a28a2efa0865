// Whether an endpoint can work with its options and peers. kInvalidArgument says what to change.
#pragma once

#include <string>

#include "transport/base/error.h"
#include "transport/options.h"

namespace weft::transport {

Error checkName(const std::string& name);
Error checkOptions(const EndpointOptions& options);

}  // namespace weft::transport
