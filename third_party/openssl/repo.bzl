"""OpenSSL 3 from Debian's libssl-dev: linked shared, so that security updates reach Weft."""

load("//third_party:repo_tools.bzl", "debian_library")

_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "crypto", linkopts = ["-lcrypto"])
cc_library(name = "ssl", linkopts = ["-lssl"], deps = [":crypto"])
"""

def _impl(ctx):
    debian_library(ctx, "openssl/ssl.h", "libssl-dev", _BUILD)

openssl_repository = repository_rule(implementation = _impl, local = True)
