#include "transport/tls/certificate_names.h"

#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace weft::transport {
namespace {

std::string textOf(const ASN1_STRING* text) {
  unsigned char* utf8 = nullptr;
  const int length = ::ASN1_STRING_to_UTF8(&utf8, text);
  if (length < 0) return {};
  std::string out(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(length));
  ::OPENSSL_free(utf8);
  return out;
}

}  // namespace

std::vector<std::string> namesOf(const X509& certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&::GENERAL_NAMES_free)> alternatives(
      static_cast<GENERAL_NAMES*>(
          ::X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &::GENERAL_NAMES_free);
  for (int i = 0; alternatives && i < sk_GENERAL_NAME_num(alternatives.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(alternatives.get(), i);
    if (name->type == GEN_DNS) names.push_back(textOf(name->d.dNSName));
  }
  const X509_NAME* const subject = ::X509_get_subject_name(&certificate);
  int at = ::X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  while (at >= 0) {
    names.push_back(textOf(::X509_NAME_ENTRY_get_data(::X509_NAME_get_entry(subject, at))));
    at = ::X509_NAME_get_index_by_NID(subject, NID_commonName, at);
  }
  return names;
}

}  // namespace weft::transport
