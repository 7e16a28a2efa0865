"""Patches of forward-mode AD, whose levels torch counts per process: one stage at a time has one."""

from __future__ import annotations

import threading
from typing import Any

from weft import _C
from weft._torch.patches.patch import Function, patch

_FORWARD_AD = "torch.autograd.forward_ad"
_TRANSFORMS = "torch._functorch.eager_transforms"
_WITHOUT = (
    "Forward-mode AD inside a stage of a Pipe is refused: without the patch two stages end each "
    "other's level, and tangents may be zero."
)
_SIGNATURES = {
    f"{_FORWARD_AD}:enter_dual_level": "()",
    f"{_FORWARD_AD}:exit_dual_level": "(*, level=None)",
    f"{_TRANSFORMS}:enter_jvp_nesting": "()",
    f"{_TRANSFORMS}:exit_jvp_nesting": "()",
}


def _in_stage() -> bool:
    """Whether a stage runs on this thread, or a backward: a stage's may have its own levels."""
    return _C.pipe.micro_batch() is not None or _C.pipe.is_run_again()


class _Turns(threading.local):
    """The turn of one thread to have levels; it ends with the outermost of them."""

    LONGEST = 600.0  # seconds that one turn may keep another thread waiting
    _free = threading.Lock()
    _taken = 0  # how many turns there have been, of all threads

    def __init__(self) -> None:
        self.depth = 0
        self.refused = False  # the level that is left next was not entered

    def begin(self) -> None:
        if self.depth == 0:
            self._take()
        self.depth += 1

    def end(self) -> None:
        """Does nothing for a level that was entered outside of stages."""
        if self.depth:
            self.depth -= 1
            if self.depth == 0:
                self._free.release()

    def _take(self) -> None:
        seen = _Turns._taken
        while not self._free.acquire(timeout=self.LONGEST):
            if seen == _Turns._taken:
                raise RuntimeError(
                    "a stage of a Pipe waited to enter a level of forward-mode AD, of which a "
                    f"process has one, and another stage had not left its own after {self.LONGEST:g} "
                    "s: leave each level in the stage that enters it, and run no other Pipe's "
                    "backward inside of it"
                )
            seen = _Turns._taken
        _Turns._taken += 1


_turns = _Turns()


def _level(target: str, caller: str) -> Any:
    return patch(
        target,
        _SIGNATURES[target],
        without=_WITHOUT,
        refuses=_in_stage,
        caller=caller,
        # All four or none: who enters must also leave.
        uses={other: text for other, text in _SIGNATURES.items() if other != target},
    )


def _enter(upstream: Function) -> Any:
    """Waits until no other stage has a level."""
    if not _in_stage():
        return upstream()
    _turns.begin()
    try:
        return upstream()
    except BaseException:
        _turns.end()
        raise


def _enter_jvp(upstream: Function) -> Any:
    """As :func:`_enter`; torch leaves the nesting even where entering it raised."""
    try:
        return _enter(upstream)
    except BaseException:
        _turns.refused = True
        raise


def _exit(upstream: Function, **level: Any) -> None:
    try:
        upstream(**level)
    finally:
        _turns.end()


def _exit_jvp(upstream: Function) -> None:
    if _turns.refused:
        _turns.refused = False
        return
    _exit(upstream)


_DUAL = f"{_FORWARD_AD}:dual_level"
_JVP = f"{_TRANSFORMS}:jvp_increment_nesting"
enter_dual = _level(f"{_FORWARD_AD}:enter_dual_level", f"{_DUAL}.__enter__")(_enter)
exit_dual = _level(f"{_FORWARD_AD}:exit_dual_level", f"{_DUAL}.__exit__")(_exit)
enter_jvp = _level(f"{_TRANSFORMS}:enter_jvp_nesting", _JVP)(_enter_jvp)
exit_jvp = _level(f"{_TRANSFORMS}:exit_jvp_nesting", _JVP)(_exit_jvp)
