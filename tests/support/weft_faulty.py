"""The agent that injects faults, for PyTorch's fault-injection suites and the tests of RRefs."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import weft
from weft import _C
from weft._torch.registration import make_agent, register_backend
from weft.options import RpcBackendOptions

BACKEND = "WEFT_FAULTY"


class FaultyRpcBackendOptions(RpcBackendOptions):
    """Weft's options, and which messages fail or are held back.

    Args:
        messages_to_fail: names of message types whose first sends fail.
        messages_to_delay: names of message types, each with seconds to hold it back.
        num_fail_sends: how often a message of ``messages_to_fail`` fails before it passes.
        messages_to_repeat: names of message types, each with the number of copies sent besides.
    """

    def __init__(
        self,
        *,
        messages_to_fail: Sequence[str] = (),
        messages_to_delay: Mapping[str, float] | None = None,
        num_fail_sends: int = 0,
        messages_to_repeat: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay or {})
        self.num_fail_sends = num_fail_sends
        self.messages_to_repeat = dict(messages_to_repeat or {})


def _make_agent(*, rpc_backend_options: FaultyRpcBackendOptions, **more: Any) -> _C.WeftAgent:
    names = ("messages_to_fail", "messages_to_delay", "num_fail_sends", "messages_to_repeat")
    make = _extension().maker(**{name: getattr(rpc_backend_options, name) for name in names})
    return make_agent(rpc_backend_options=rpc_backend_options, make=make, **more)


@functools.cache
def _extension() -> Any:
    """The C++ part, which ./dev test builds beside the package: tests/support/faulty."""
    path = Path(weft.library_path()).parents[2] / "tests" / "_weft_faulty.so"
    spec = importlib.util.spec_from_file_location("_weft_faulty", path)
    assert spec is not None and spec.loader is not None and path.exists(), f"no {path}: ./dev test"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


register_backend(BACKEND, FaultyRpcBackendOptions, _make_agent)
