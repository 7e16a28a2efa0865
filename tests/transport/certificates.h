// Certificates for tests, made by OpenSSL: authorities, and workers' that they signed, as PEM files
// in a folder that goes with this.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/support/fuzz_input.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {

class Certificates {
 public:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

  struct Authority {
    Key key;
    Certificate certificate;
  };

  Certificates() {
    std::string name = std::filesystem::temp_directory_path() / "weft-tls-XXXXXX";
    testing::require(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  static Authority authority(const std::string& name) {
    Authority made{newKey(), {::X509_new(), &::X509_free}};
    prepare(*made.certificate, *made.key, name, 3600);
    add(*made.certificate, NID_basic_constraints, "critical,CA:TRUE");
    sign(*made.certificate, *made.certificate, *made.key);
    return made;
  }

  // `common` and `dns` (may be empty): the names. `lasts`: seconds, negative: it is over.
  TlsFiles worker(const Authority& by, const std::string& common, const std::string& dns = "",
                  long lasts = 3600) {
    const Key key = newKey();
    const Certificate made(::X509_new(), &::X509_free);
    prepare(*made, *key, common, lasts);
    if (!dns.empty()) add(*made, NID_subject_alt_name, "DNS:" + dns);
    sign(*made, *by.certificate, *by.key);
    const std::string stem = folder_ + "/" + std::to_string(++count_);
    TlsFiles files{stem + ".crt", stem + ".key", stem + ".ca"};
    write(files.certificate, [&](FILE* to) { return ::PEM_write_X509(to, made.get()); });
    write(files.authorities, [&](FILE* to) { return ::PEM_write_X509(to, by.certificate.get()); });
    write(files.key, [&](FILE* to) {
      return ::PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return files;
  }

 private:
  static Key newKey() { return {::EVP_EC_gen("P-256"), &::EVP_PKEY_free}; }

  static void prepare(X509& made, EVP_PKEY& key, const std::string& name, long lasts) {
    static long serial = 0;
    ::X509_set_version(&made, 2);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(&made), ++serial);
    ::X509_gmtime_adj(::X509_getm_notBefore(&made), lasts < 0 ? 2 * lasts : -60);
    ::X509_gmtime_adj(::X509_getm_notAfter(&made), lasts);
    ::X509_set_pubkey(&made, &key);
    ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(&made), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  }
  static void add(X509& to, int kind, const std::string& text) {
    X509_EXTENSION* const extension = ::X509V3_EXT_conf_nid(nullptr, nullptr, kind, text.c_str());
    testing::require(extension != nullptr);
    ::X509_add_ext(&to, extension, -1);
    ::X509_EXTENSION_free(extension);
  }
  static void sign(X509& made, X509& by, EVP_PKEY& key) {
    ::X509_set_issuer_name(&made, ::X509_get_subject_name(&by));
    testing::require(::X509_sign(&made, &key, ::EVP_sha256()) > 0);
  }
  template <typename Write>
  static void write(const std::string& file, Write how) {
    FILE* const to = std::fopen(file.c_str(), "w");
    testing::require(to != nullptr && ::fchmod(::fileno(to), 0600) == 0 && how(to) == 1);
    std::fclose(to);
  }

  std::string folder_;
  int count_ = 0;
};

}  // namespace weft::transport
