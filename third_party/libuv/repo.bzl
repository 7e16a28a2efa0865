"""libuv from its Debian source package, static, position-independent and hidden.

libtorch_cpu.so exports another version's uv_* functions; a call of ours bound to one of those
crashes. So: no shared libuv (it would clash), not Debian's libuv_a.a (it is not PIC), and UV_EXTERN
set to hidden in uv.h, which both keeps our uv_* out of the dynamic symbol table and makes the linker
refuse to look for them in any other shared object.
"""

load("//third_party:repo_tools.bzl", "fail_with_setup")

_DEFAULT = '__attribute__((visibility("default")))'
_HIDDEN = '__attribute__((visibility("hidden")))'

def _impl(ctx):
    src = ctx.os.environ.get("WEFT_LIBUV_SRC", "")
    if not src:
        cache = ctx.os.environ.get("WEFT_CACHE", ctx.os.environ.get("HOME", "") + "/.cache/weft")
        src = cache + "/libuv-1.44.2"
    if not ctx.path(src + "/include/uv.h").exists:
        fail_with_setup("libuv's source is not in %s" % src)
    ctx.symlink(src + "/src", "src")
    ctx.symlink(src + "/include/uv", "include/uv")
    header = ctx.read(src + "/include/uv.h")
    if _DEFAULT not in header:
        fail("Weft: %s/include/uv.h declares UV_EXTERN in a way that this rule does not know" % src)
    ctx.file("include/uv.h", header.replace(_DEFAULT, _HIDDEN))
    ctx.symlink(Label("//third_party/libuv:libuv.BUILD.bazel"), "BUILD.bazel")

libuv_repository = repository_rule(
    implementation = _impl,
    environ = ["WEFT_LIBUV_SRC", "WEFT_CACHE"],
)
