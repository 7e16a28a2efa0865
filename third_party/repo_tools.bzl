"""What the repository rules share: asking the interpreter, and failing with the one command."""

def fail_with_setup(what):
    """Ends the build; ./dev setup is the one command that installs whatever is missing."""
    fail("\n\n  Weft: %s\n  This command fixes it:  ./dev setup\n" % what)

def ask_python(ctx, code):
    """Runs `code` in the interpreter named by WEFT_PYTHON and returns the lines it prints."""
    python = ctx.os.environ.get("WEFT_PYTHON", "")
    if not python:
        fail_with_setup("WEFT_PYTHON is not set; build through ./dev build or ./dev bazel")
    result = ctx.execute([python, "-I", "-c", code], timeout = 60)
    if result.return_code != 0:
        fail_with_setup("%s could not answer:\n%s" % (python, result.stderr))
    return [line for line in result.stdout.split("\n") if line]

def debian_library(ctx, header, package, build_file):
    """A Debian development package: its header must lie in /usr/include, the rest is BUILD text."""
    if not ctx.path("/usr/include/" + header).exists:
        fail_with_setup("%s is missing (Debian package %s)" % (header, package))
    ctx.file("BUILD.bazel", build_file)
