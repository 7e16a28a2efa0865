"""ISA-L from Debian's libisal-dev: linked shared. Of it Weft uses CRC-32C."""

load("//third_party:repo_tools.bzl", "debian_library")

_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "isal", linkopts = ["-lisal"])
"""

def _impl(ctx):
    debian_library(ctx, "isa-l/crc.h", "libisal-dev", _BUILD)

isal_repository = repository_rule(implementation = _impl, local = True)
