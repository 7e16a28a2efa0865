"""Gloo from Debian's libgloo-dev: linked shared, and into libweft_gloo.so only.

libtorch_cpu.so carries another version of Gloo and exports its symbols. What uses this one must be a
shared object of its own, opened with RTLD_LOCAL | RTLD_DEEPBIND and with libgloo.so.0 the first of
its dependencies, so that its names are found there before they are found in torch.
"""

load("//third_party:repo_tools.bzl", "debian_library")

# The run-time name: libgloo.so without a version exists only with the development package.
_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "gloo", linkopts = ["-l:libgloo.so.0"])
"""

def _impl(ctx):
    debian_library(ctx, "gloo/allreduce.h", "libgloo-dev", _BUILD)

gloo_repository = repository_rule(implementation = _impl, local = True)
