// The names that a certificate is for: the DNS names among its alternative names, then its common
// names. Byte for byte: workers' names have no wildcards, and "a" is not "A".
#pragma once

#include <string>
#include <vector>

struct x509_st;

namespace weft::transport {

std::vector<std::string> namesOf(const x509_st& certificate);

}  // namespace weft::transport
