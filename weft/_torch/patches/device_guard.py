"""The patch that lets threads which end run torch.compile on a machine without a GPU."""

from __future__ import annotations

from weft import _C
from weft._torch.patches.patch import Patch

ensure = Patch(
    "torch._C:_ensureCUDADeviceGuardSet",
    "(unknown)",  # a builtin without a docstring
    without="torch.compile on a thread of Weft may crash on a machine without a GPU.",
    replacement=lambda upstream: _C.pipe.ensure_cuda_device_guard(),
)
