// errno as text, by its name: "ECONNRESET" says more than "error 104".
#pragma once

#include <string>

#include "transport/base/error.h"

namespace weft::transport {

std::string errnoName(int number);  // "ECONNRESET"
std::string errnoText(int number);  // "ECONNRESET: Connection reset by peer"
Error systemError(const std::string& operation, int number);

}  // namespace weft::transport
