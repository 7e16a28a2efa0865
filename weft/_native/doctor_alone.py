"""What the doctor says where Weft cannot be loaded, and so nothing else can be asked."""

from __future__ import annotations

import importlib.metadata
import platform

from weft._version import __version__


def main(problem: str) -> int:
    """Prints what is here and what to do; returns the exit status.

    Args:
        problem: why Weft cannot be loaded, in one line.
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "not installed"
    print(f"ok    Python {platform.python_version()}, torch: {torch}, Weft {__version__}")
    print(f"FAIL  {problem}")
    return 1
