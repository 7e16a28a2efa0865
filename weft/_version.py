"""The version of Weft, in one place, and the torch that this build of it is for."""

from __future__ import annotations

VERSION = "0.1.0"
# The minor versions of torch that there are wheels for.
TORCHES = ("2.11", "2.12", "2.13", "2.14", "2.15")

try:
    # Written by the build beside this file: "2.11".
    from weft._built_for import TORCH
except ImportError:
    # The sources alone, as Bazel's tests lay them out.
    TORCH = ""

__version__ = f"{VERSION}+torch{TORCH}" if TORCH else VERSION


def mismatch(torch_version: str) -> str | None:
    """One line that says which torch is needed and how to get it; None where it is this one.

    Args:
        torch_version: of the torch that is here, such as ``torch.__version__``; "" if none is.
    """
    minor = ".".join(torch_version.split(".")[:2])
    if not TORCH or minor == TORCH:
        return None
    here = f"torch {torch_version.partition('+')[0]} is here" if minor else "there is no torch here"
    other = f", or the wheel weft {VERSION}+torch{minor}" if minor in TORCHES else ""
    return (
        f"Weft {__version__} needs torch {TORCH}, and {here}: "
        f"pip install 'torch=={TORCH}.*'{other} (docs/guide/install.md)"
    )
