"""A library's sources in a few files for the compiler.

Most of what a file of ours takes the compiler is its headers (torch's alone 5 to 15 seconds), and
the templates that those instantiate. Files that are compiled as one share both, at the price of
names: those in unnamed namespaces must differ within a package. `#line` keeps the files' own names
in messages and debug information.
"""

# Enough to share the headers; few enough that two cores share a package, and that a change of one
# file compiles again in seconds.
_AT_MOST = 6

def joined(name, srcs):
    """Puts the sources into files of several, made by rules that begin with `name`.

    Args:
      name: the library.
      srcs: its sources; what does not end in .cpp stays as it is.

    Returns:
      what the library compiles.
    """
    sources = [src for src in srcs if src.endswith(".cpp")]
    if len(sources) < 2:
        return srcs
    files = (len(sources) + _AT_MOST - 1) // _AT_MOST
    each = (len(sources) + files - 1) // files
    compiled = []
    for first in range(0, len(sources), each):
        out = "%s_%d.joined.cpp" % (name, first // each)
        native.genrule(
            name = out + "_rule",
            srcs = sources[first:first + each],
            outs = [out],
            cmd = "for file in $(SRCS); do echo \"#line 1 \\\"$$file\\\"\"; cat $$file; done >$@",
        )
        compiled.append(out)
    return compiled + [src for src in srcs if not src.endswith(".cpp")]
