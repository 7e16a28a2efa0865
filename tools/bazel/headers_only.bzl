"""The headers of a library without its code."""

def _impl(ctx):
    infos = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = infos).compilation_context
    return [CcInfo(compilation_context = context)]

# What goes into _C.so sees libweft's classes through this and finds them in libweft.so at link
# time. Depending on the library itself would put a second copy of every class into _C.so.
headers_only = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
