"""Checks of what is installed: Python, torch, Weft's shared objects, the registration."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from weft.doctor.finding import Finding, fail, ok, warn


def versions() -> Iterator[Finding]:
    """Python and torch, and the torch that Weft was built for."""
    import torch

    here = f"Python {platform.python_version()}, torch {torch.__version__}"
    built = built_for()
    if built is None:
        yield ok(here)
    elif torch.__version__.startswith(f"{built}."):
        yield ok(f"{here}; Weft was built for torch {built}")
    else:
        rebuild = "rebuild it (WEFT_TORCH=… ./dev build)"
        yield fail(f"{here}, but Weft was built for torch {built}; {rebuild}")
    cores = len(os.sched_getaffinity(0))
    yield ok(f"{cores} cores; CUDA devices: {torch.cuda.device_count()}")


def built_for() -> str | None:
    """The minor version of torch that Weft was built for, such as ``2.11``; None if unknown."""
    try:
        required = " ".join(importlib.metadata.requires("weft") or ())
    except importlib.metadata.PackageNotFoundError:
        required = ""
    # A wheel requires it; the staged package of a checkout lies in a folder named after it.
    wheel = re.search(r"torch \(==(\d+\.\d+)\.", required)
    staged = re.search(r"/torch-(\d+\.\d+)\.[^/]*/site/", f"{Path(__file__).absolute()}")
    found = wheel or staged
    return found[1] if found else None


def native_parts() -> Iterator[Finding]:
    """libweft.so and weft._C."""
    try:
        import weft
    except ImportError as error:
        yield fail(str(error))
        return
    path = Path(weft.library_path())
    if path.exists():
        yield ok(f"Weft {weft.__version__}, {path}")
    else:
        yield fail(f"{path} is missing; build it with ./dev build")


def registration() -> Iterator[Finding]:
    """The backend, and the entry point that lets torch load Weft by itself."""
    import torch.distributed.rpc as rpc

    if "WEFT" in rpc.BackendType.__members__:
        yield ok("init_rpc knows BackendType.WEFT")
    else:
        yield fail("init_rpc does not know BackendType.WEFT; import weft")
    points = importlib.metadata.entry_points(group="torch.backends")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        yield warn("TORCH_DEVICE_BACKEND_AUTOLOAD=0: programs must import weft themselves")
    elif any(point.name == "weft" for point in points):
        yield ok("torch loads Weft by itself (entry point torch.backends)")
    else:
        yield warn("no entry point: programs must import weft themselves")


def patches() -> Iterator[Finding]:
    """Whether torch's functions that Weft replaces are those that it knows."""
    from weft._torch import patches

    differences = [(patch, text) for patch in patches.ALL if (text := patch.mismatch())]
    for patch, text in differences:
        yield warn(f"{text}. {patch.without}")
    if not differences:
        yield ok(f"torch has the {len(patches.ALL)} functions that Weft replaces as expected")


def unknown_variables() -> Iterator[Finding]:
    """Environment variables that begin with ``WEFT_`` and that Weft does not know."""
    from weft import env

    for name in env.unknown():
        yield warn(f"{name} is no variable of Weft's")
