"""Patches of torch's debug server (``torch.distributed.debug``): it shows Weft's operations, too.

Each worker answers its page with torch's own record, from C++. So each answers another page with the
dump that has Weft's, and the frontend asks for that one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from typing import Any

import torch

from weft._torch.patches.flight_recorder import PAGE, WITHOUT, torch_records
from weft._torch.patches.patch import Function, Patch, patch


@patch(
    "torch.distributed.debug:start_debug_server",
    "(port=25999, worker_port=0, start_method=None, dump_dir=None, dump_interval=60.0, "
    "enabled_dumps=None, handlers=None)",
    without=WITHOUT,
)
def start(upstream: Function, *args: Any, handlers: Any = None, **more: Any) -> None:
    """Answers the page here; on rank 0, which has the frontend, lets that ask for it."""
    from torch.distributed.debug import _store

    answer_page()
    if handlers is None and _store.get_rank() == 0:
        with contextlib.suppress(ImportError):  # torch says itself what it needs
            from weft._torch.patches import debug_pages

            handlers = debug_pages.handlers()
    upstream(*args, handlers=handlers, **more)


@functools.cache
def answer_page() -> None:
    """From now on this process answers the page; a second call changes nothing."""
    from torch._C._distributed_c10d import _register_handler

    _register_handler(PAGE, _answer)


def _answer(request: Any, response: Any) -> None:
    response.set_content(torch._C._distributed_c10d._dump_fr_trace_json(), "application/json")
    response.set_status(200)


_EXISTS = importlib.util.find_spec("torch.distributed.debug") is not None
PATCHES: tuple[Patch, ...] = (start,) if _EXISTS and not torch_records() else ()
