"""How Weft's own C++ is compiled. Every target of ours goes through these macros."""

load("//tools/bazel:headers_only.bzl", "headers_only")
load("//tools/bazel:joined.bzl", "joined")
load("//tools/bazel:precompiled_header.bzl", "precompiled_header")

# Torch's headers are system includes and stay silent. Symbols are hidden unless they say
# WEFT_API: libtorch_cpu.so exports thousands, and nothing of ours may meet one by accident.
_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Werror",
    # GCC takes the parts of a joined file for headers, whose types are other files' too.
    "-Wno-subobject-linkage",
    "-fvisibility=hidden",
]

# Torch itself, and what has torch in its headers.
_WITH_TORCH = [
    "//:weft",
    "//jit_ops",
    "//rpc_backend",
    "//third_party/torch:torch_cpu",
    "//third_party/torch:torch_python",
]

def _torch(deps):
    """More flags and dependencies of a target that uses torch: its headers, parsed once."""
    if [dep for dep in deps if dep in _WITH_TORCH]:
        header = "third_party/torch/parsed_torch"
        return ["-include", header + ".h"], ["//third_party/torch:parsed_torch"]
    return [], []

def weft_precompiled_header(name, **kwargs):
    precompiled_header(name = name, copts = _COPTS, **kwargs)

def weft_cc_library(name, srcs = [], copts = [], deps = [], headers = None, **kwargs):
    """A cc_library with Weft's warnings.

    Args:
      name: the target.
      srcs: its sources.
      copts: more compiler flags.
      deps: the libraries it uses.
      headers: if given, also a target of this name with the same headers and no code.
      **kwargs: as for cc_library.
    """
    torch_copts, torch_deps = _torch(deps)
    native.cc_library(
        name = name,
        srcs = joined(name, srcs),
        copts = _COPTS + torch_copts + copts,
        deps = deps + torch_deps,
        **kwargs
    )
    if headers:
        headers_only(
            name = headers,
            # The layer's parts of other shared objects find the code in libweft.so.
            visibility = kwargs.get("visibility", []) + [
                "//%s/%s:__pkg__" % (native.package_name(), part)
                for part in ("cuda", "cuda/device", "python")
            ],
            deps = [":" + name],
        )

def weft_cc_binary(name, copts = [], deps = [], **kwargs):
    torch_copts, torch_deps = _torch(deps)
    native.cc_binary(
        name = name,
        copts = _COPTS + torch_copts + copts,
        deps = deps + torch_deps,
        **kwargs
    )

def weft_cc_test(name, copts = [], deps = [], size = "small", main = True, **kwargs):
    """A GoogleTest binary. main = False where the test brings its own main().

    The tag "one-thread" says that a thread sanitizer finds nothing in it.
    """
    torch_copts, torch_deps = _torch(deps)
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + torch_copts + copts,
        deps = deps + torch_deps + ["//third_party/googletest:gtest_main" if main else "//third_party/googletest:gtest"],
        **kwargs
    )

def weft_fuzz_test(name, copts = [], deps = [], **kwargs):
    """A libFuzzer target; its committed corpus is the folder corpus/<name> beside it.

    The fuzzer is built only by `./dev fuzz` (--config=fuzz): the engine is clang's. The test
    <name>_corpus runs the corpus without it.
    """
    corpus = "corpus/" + name
    weft_cc_test(
        name = name + "_corpus",
        copts = copts,
        data = native.glob([corpus + "/*"]),
        env = {"WEFT_CORPUS": native.package_name() + "/" + corpus},
        tags = ["one-thread"],
        deps = deps + ["//tests/support:replay_corpus"],
        **kwargs
    )
    torch_copts, torch_deps = _torch(deps)
    native.cc_binary(
        name = name,
        copts = _COPTS + torch_copts + copts,
        deps = deps + torch_deps,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["fuzz", "manual"],
        testonly = True,
        **kwargs
    )
