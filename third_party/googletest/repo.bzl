"""GoogleTest and GoogleMock, compiled from Debian's package `googletest`.

Debian's prebuilt archives would do for opt, but the sanitizer builds need instrumented ones.
"""

load("//third_party:repo_tools.bzl", "fail_with_setup")

_SRC = "/usr/src/googletest"

_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(
    name = "gtest",
    srcs = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc"],
    hdrs = glob(["googletest/include/**/*.h", "googlemock/include/**/*.h"]),
    textual_hdrs = glob(
        ["googletest/src/*.cc", "googletest/src/*.h", "googlemock/src/*.cc"],
        exclude = ["**/*_main.cc", "**/*-all.cc"],
    ),
    includes = ["googletest/include", "googlemock/include", "googletest", "googlemock"],
    copts = ["-w"],
    linkopts = ["-lpthread"],
)
alias(name = "gmock", actual = ":gtest")
cc_library(
    name = "gtest_main",
    srcs = ["googlemock/src/gmock_main.cc"],
    copts = ["-w"],
    deps = [":gtest"],
)
"""

def _impl(ctx):
    if not ctx.path(_SRC + "/googletest/src/gtest-all.cc").exists:
        fail_with_setup("%s is missing (Debian package googletest)" % _SRC)
    ctx.symlink(_SRC + "/googletest", "googletest")
    ctx.symlink(_SRC + "/googlemock", "googlemock")

    # Debian ships upstream's BUILD.bazel inside the tests; they would cut our globs short.
    ctx.file("BUILD.bazel", _BUILD)

googletest_repository = repository_rule(implementation = _impl, local = True)
