"""Google Benchmark from Debian's libbenchmark-dev."""

load("//third_party:repo_tools.bzl", "debian_library")

_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "benchmark", linkopts = ["-lbenchmark", "-lpthread"])
cc_library(name = "benchmark_main", linkopts = ["-lbenchmark_main"], deps = [":benchmark"])
"""

def _impl(ctx):
    debian_library(ctx, "benchmark/benchmark.h", "libbenchmark-dev", _BUILD)

benchmark_repository = repository_rule(implementation = _impl, local = True)
