"""The functions of torch that Weft replaces; the doctor checks them against this torch.

Most act only where the agent or the process group is Weft's. Always: device_guard, forward_ad (in
stages of a Pipe), and the reducers of scripted modules (calls.py). Besides these there are debug_pages,
in the debug server's process, and what Weft puts into torch's tables default_device_backend_map,
backend_capability and pg_coalesce_state. To see what a torch has changed::

    from weft._torch import patches
    print([text for patch in patches.ALL if (text := patch.mismatch())])
"""

from __future__ import annotations

from types import ModuleType

from weft._torch.patches import (
    batches,
    calls,
    debug_server,
    default,
    device_guard,
    devices,
    failures,
    flight_recorder,
    forward_ad,
    futures,
    groups,
    rref,
    shutdown,
    startup,
    timeouts,
    unpickler,
)
from weft._torch.patches.patch import Patch


def _in(*modules: ModuleType) -> tuple[Patch, ...]:
    """Every patch that the modules make, in their order."""
    return tuple(
        one for module in modules for one in vars(module).values() if isinstance(one, Patch)
    )


AT_IMPORT = (
    *_in(device_guard, devices, startup, calls),
    unpickler.ordered,
    *_in(failures, timeouts, rref, futures, shutdown, groups, batches),
    *flight_recorder.PATCHES,
    *debug_server.PATCHES,
    *_in(forward_ad),
)
ON_REQUEST = (unpickler.restricted, *_in(default))
ALL = (*AT_IMPORT, *ON_REQUEST)


def install() -> None:
    """Installs the patches that registration needs."""
    for patch in AT_IMPORT:
        patch.install()
