"""Headers of an NVIDIA library: pip's nvidia packages (torch brings them), else a toolkit."""

load("//third_party:repo_tools.bzl", "ask_python", "fail_with_setup")

# Prints every include folder that might hold the header, best first.
_ASK = """
import glob, os, sysconfig
site = sysconfig.get_paths()["purelib"]
for include in sorted(glob.glob(os.path.join(site, "nvidia", "*", "include"))):
    print(include)
for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr"):
    if home:
        print(os.path.join(home, "include"))
"""

_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _impl(ctx):
    header = ctx.attr.header
    for include in ask_python(ctx, _ASK):
        if not ctx.path(include + "/" + header).exists:
            continue
        if include == "/usr/include":
            # The compiler looks there anyway, and a glob over it would take everything.
            ctx.file("BUILD.bazel", _BUILD.replace("hdrs", "# hdrs").replace("includes", "# includes"))
        else:
            ctx.symlink(include, "include")
            ctx.file("BUILD.bazel", _BUILD)
        return
    fail_with_setup("%s is neither in pip's nvidia packages nor in a CUDA toolkit" % header)

nvidia_headers = repository_rule(
    implementation = _impl,
    attrs = {"header": attr.string(mandatory = True)},
    environ = ["WEFT_PYTHON", "CUDA_HOME"],
)
