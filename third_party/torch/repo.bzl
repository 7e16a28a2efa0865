"""LibTorch as pip installed it: the interpreter in WEFT_PYTHON says where."""

load("//third_party:repo_tools.bzl", "ask_python", "fail_with_setup")

# torch is not imported: find_spec costs milliseconds, the import costs seconds.
_ASK = """
import importlib.util, os, sysconfig
spec = importlib.util.find_spec("torch")
print(os.path.dirname(os.path.realpath(spec.origin)) if spec else "-")
print(sysconfig.get_paths()["include"])
"""

_CUDA = """defines = ["WEFT_TORCH_CUDA=1"],
    linkopts = ["-ltorch_cuda", "-lc10_cuda"],"""

def _impl(ctx):
    torch, python_include = ask_python(ctx, _ASK)
    if torch == "-":
        fail_with_setup("torch is not installed in the venv of WEFT_PYTHON")
    if not ctx.path(python_include + "/Python.h").exists:
        fail_with_setup("%s/Python.h is missing (Debian package python3-dev)" % python_include)
    ctx.symlink(torch + "/include", "include")
    ctx.symlink(python_include, "python")
    has_cuda = ctx.path(torch + "/lib/libtorch_cuda.so").exists
    ctx.template(
        "BUILD.bazel",
        Label("//third_party/torch:torch.BUILD.tpl"),
        substitutions = {
            "%{cuda}": _CUDA if has_cuda else "",
            "%{lib}": torch + "/lib",
        },
    )

torch_repository = repository_rule(
    implementation = _impl,
    environ = ["WEFT_PYTHON"],
)
