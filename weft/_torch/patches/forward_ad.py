"""Patches of forward-mode AD, whose levels torch counts per process: one stage at a time has one."""

from __future__ import annotations

import contextlib
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


#: Held by the thread whose stage has levels, until it has left the outermost of them.
_levels = threading.RLock()


def _in_stage() -> bool:
    """Whether a stage runs on this thread, or a backward: a stage's may have its own levels."""
    return _C.pipe.micro_batch() is not None or _C.pipe.is_run_again()


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
    _levels.acquire()
    try:
        return upstream()
    except BaseException:
        _levels.release()
        raise


def _exit(upstream: Function, **level: Any) -> None:
    try:
        upstream(**level)
    finally:
        with contextlib.suppress(RuntimeError):  # the level was entered outside of stages
            _levels.release()


_DUAL = f"{_FORWARD_AD}:dual_level"
_JVP = f"{_TRANSFORMS}:jvp_increment_nesting"
enter_dual = _level(f"{_FORWARD_AD}:enter_dual_level", f"{_DUAL}.__enter__")(_enter)
exit_dual = _level(f"{_FORWARD_AD}:exit_dual_level", f"{_DUAL}.__exit__")(_exit)
enter_jvp = _level(f"{_TRANSFORMS}:enter_jvp_nesting", _JVP)(_enter)
exit_jvp = _level(f"{_TRANSFORMS}:exit_jvp_nesting", _JVP)(_exit)
