"""Weft's log lines in Python's logging, as the logger ``weft``.

C++ logs without the GIL, into a queue; one thread takes the lines out. Where Python's logging has no
handler when the process joins a group, there is no thread, and the lines go to standard error.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import traceback

import torch

from weft import _C
from weft._torch import current
from weft._torch.log import inform
from weft._torch.threads import started
from weft._version import __version__

logger = logging.getLogger("weft")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)  # C++'s, in this order
_mutex = threading.Lock()
_connected: int | None = None  # the process that has the thread: a forked child has not


def connect() -> None:
    """Sends the lines to the logger ``weft`` from now on, if anybody listens there."""
    global _connected
    with _mutex:
        if _connected == os.getpid() or not logger.hasHandlers():
            return
        _connected = os.getpid()
    if not os.environ.get("WEFT_LOG_LEVEL"):
        level = logger.getEffectiveLevel()
        _C._set_log_level(sum(one < level for one in _LEVELS[:-1]))
    thread = threading.Thread(target=_forward, name="weft-log", daemon=True)
    _C._open_log()
    if started(thread, "the log goes to standard error"):
        atexit.register(_stop, thread)
    else:
        _C._close_log()


def _forward() -> None:
    while lines := _C._take_log_lines():
        for level, text in lines:
            try:
                logger.log(_LEVELS[level], "%s", text)
            except Exception:  # of a handler or filter of the user's: the lines that follow go on
                traceback.print_exc()


def _stop(thread: threading.Thread) -> None:
    """Lines that come later go to standard error; those that came are handled."""
    _C._close_log()
    thread.join(timeout=2)  # a handler of the user's may block


def announce(name: str, rank: int, world_size: int | None, key_file: str) -> None:
    """Says what this worker runs, once it has joined."""
    workers = f"of {world_size}" if world_size else "of a dynamic group"
    inform(f"worker '{name}' (rank {rank}) {workers} has joined: {_runs(key_file)}")


def announce_group(name: str, rank: int, size: int, path: str) -> None:
    """Says what a process group runs, once its ranks have met."""
    inform(
        f"{current.group_text(name)}: rank {rank} of {size} has joined, collectives by {path}: "
        f"{_runs(os.environ.get('WEFT_AUTH_KEY_FILE', ''))}",
    )


def _runs(key_file: str) -> str:
    key = "from a file" if key_file else "shared through the Store"
    return (
        f"weft {__version__}, torch {torch.__version__}, key {key}, "
        f"encryption {os.environ.get('WEFT_ENCRYPTION') or 'auto'}, "
        f"shared memory {_switch('WEFT_SHARED_MEMORY')}, Unix sockets {_switch('WEFT_UNIX_SOCKET')}"
    )


def _switch(variable: str) -> str:
    return "off" if os.environ.get(variable) == "0" else "on"
