"""Where the threads of a process are while one of them holds the GIL for long, as native code may.

No Python runs there then. So that C++ can have the stacks all the same
(rpc_backend/python/held_stacks.h), the signal handler of Python's faulthandler is registered
beforehand, for a signal that nobody uses. The signal is never sent: C++ calls its handler.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from weft import _C
from weft._observe.doing import LIBRARIES

_WARNING = 2
_VARIABLE = "WEFT_STACKS_SIGNAL"
_PATIENCE = 2.0  # seconds for a worker, which waits 1.5 s for its GIL
_LONGEST_SWITCH = 0.1  # seconds: where threads ask for the GIL more seldom all looks like a hold
_FREE = range(signal.SIGRTMAX, signal.SIGRTMAX - 8, -1)  # of which the first one unused is taken
_HANDLED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_HELD = "a thread holds Python's lock"
_HEAD = f"{_HELD}; they are at, the last calls first:\n"
# A peer's text may hold anything: this takes no time beyond its length.
_LINE = re.compile(
    r'^ *File "(?P<path>[^"\n]*)", line (?P<number>\d+) in (?P<function>.*)', re.MULTILINE
)
_mutex = threading.Lock()
_armed: tuple[int, int] | None = None  # the process, and its signal


def start(limit: float) -> None:
    """From now on, also logs the stacks where the GIL was held for ``limit`` seconds, if not 0.

    A second call changes nothing. Where that cannot be, a warning says why.
    """
    global _armed
    chosen = chosen_signal()
    with _mutex:
        if chosen == 0 or (_armed is not None and _armed[0] == os.getpid()):
            return
        try:
            number = _arm(chosen, limit)
        except (OSError, RuntimeError) as error:
            _warn(str(error))
            return
        if not number:
            return
        _armed = os.getpid(), number
    atexit.register(_C._disarm_stacks)


def answer_peers(yes: bool) -> None:
    """Whether the workers of the RPC group may ask for these stacks."""
    _C._answer_about_stacks(yes)


def ask(worker: str) -> Callable[[], str]:
    """Asks a worker that gave no answer in Python; what is returned waits for the stacks.

    They are empty where no thread holds the GIL there, or where the worker does not answer.
    """
    try:
        wait = _C._ask_for_stacks(worker, _PATIENCE).wait
    except RuntimeError:
        return lambda: ""

    def text() -> str:
        try:
            found = wait()
        except RuntimeError:
            return ""
        return f"{_HEAD}{found}" if found else ""

    return text


def ask_place(worker: str) -> Callable[[], str]:
    """As ``ask``, in a line: that a thread holds the GIL, and where the main one is, if known."""
    stacks = ask(worker)
    return lambda: _place(stacks())


def _place(stacks: str) -> str:
    first = stacks.removeprefix(_HEAD).partition("\n\n")[0]
    lines = list(_LINE.finditer(first)) if first.startswith("Main thread ") else []
    if not lines:
        return _HELD if stacks else ""
    own = [one for one in lines if not one["path"].startswith(LIBRARIES)]
    line = (own or lines)[0]
    place = f"{Path(line['path']).name}:{line['number']} ({line['function']})"
    return f"{_HELD}; its main thread is at {place}"


def chosen_signal() -> int | None:
    """The signal that the environment names; 0: there are to be no stacks."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return None
    if not text.isdigit() or not (text == "0" or int(text) in _HANDLED):
        raise ValueError(f"{_VARIABLE} must be the number of a signal, or 0, got {text!r}")
    return int(text)


def _arm(chosen: int | None, limit: float) -> int:
    """The signal whose handler is used; 0: none is free. Raises OSError or RuntimeError."""
    if sys.getswitchinterval() > _LONGEST_SWITCH:
        raise RuntimeError(f"sys.getswitchinterval() is above {_LONGEST_SWITCH:g} s")
    number = chosen or next((one for one in _FREE if _is_ours(one) or not _is_taken(one)), 0)
    if not number:
        return 0
    if _is_taken(number) and not _is_ours(number):
        raise RuntimeError(
            f"the program handles signal {number}; choose another by {_VARIABLE}, or 0 for none"
        )
    file = os.memfd_create("weft-stacks", os.MFD_CLOEXEC)
    try:
        faulthandler.register(number, file=file, all_threads=True)
    except (OSError, RuntimeError) as error:
        os.close(file)
        raise RuntimeError(
            f"{error}; choose another signal by {_VARIABLE}, or 0 for none"
        ) from None
    # It is faulthandler's from here on, and stays open.
    _C._arm_stacks(number, file, threading.main_thread().ident, limit)
    return number


def _is_ours(number: int) -> bool:
    return _armed is not None and _armed[1] == number


def _warn(why: str) -> None:
    _C._log(_WARNING, f"no stacks while Python's lock is held: {why}")


def _is_taken(number: int) -> bool:
    """Whether it is handled or ignored, by Python or by native code."""
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines()
        if line.startswith(("SigIgn", "SigCgt"))
    )
    return any(int(mask, 16) >> (number - 1) & 1 for mask in status.values())
