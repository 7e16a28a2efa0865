"""PyTorch's suite of the process groups, `DistributedTest`, on the backend weft (or gloo, to compare).

The suite decides when it is imported what runs, by the name of the backend in the environment. It is
imported as for gloo, so that all runs that runs on gloo, and is then given Weft's name. What gloo
cannot do and Weft does (WIDER) loses its gate.
"""

from __future__ import annotations

import importlib
import inspect
import os
import types
import unittest
from types import ModuleType
from typing import Any

WORLD = 4
_MODULE = "torch.testing._internal.distributed.distributed_test"
_NAMES = {"WEFT": "weft", "TENSORPIPE": "gloo"}  # the peer of each layer is chosen by one option

# all_to_all of lists, which gloo lacks, and of single tensors, which it has since; upstream's gates name
# MPI for both.
WIDER = (
    "test_all_to_all",
    "test_all_to_all_complex",
    "test_all_to_all_group",
    "test_all_to_all_full_group",
)
SINGLE = tuple(
    f"test_all_to_all_single_{form}"
    for form in (
        "equal_split",
        "equal_split_complex",
        "equal_split_group",
        "equal_split_full_group",
        "unequal_split",
        "unequal_split_complex",
        "unequal_split_group",
        "unequal_split_full_group",
    )
)


class _CountsAsGloo(str):
    """Weft's name, for tests that ask within themselves whether they run on gloo (that is: on CPUs)."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def _suite_module(backend: str) -> ModuleType:
    name = _NAMES[backend]
    # Its decorators read both when it is imported.
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD))
    try:
        module = importlib.import_module(_MODULE)
    finally:
        del os.environ["WORLD_SIZE"]  # the RPC suites must not see it
    if name == "weft":
        importlib.import_module("weft")
        module.BACKEND = _CountsAsGloo(name)
        for gates in (
            "PROFILING_SUPPORTED",
            "CUDA_PROFILING_SUPPORTED",
            "SEND_RECV_PROFILING_SUPPORTED",
        ):
            listed = getattr(module, f"{gates}_BACKENDS")
            if name not in listed:
                listed.append(name)
        from torch.testing._internal.common_distributed import DistTestCases

        for having in DistTestCases.backend_feature.values():
            if "gloo" in having:
                having.add(name)
    return module


class _World:
    """What the suite's own launcher takes from the environment."""

    def setUp(self) -> None:
        # "mpi": upstream keeps some tests from groups of fewer than 8 on all other backends.
        os.environ.update(WORLD_SIZE=str(WORLD), BACKEND="mpi")
        super().setUp()  # type: ignore[misc]

    @property
    def world_size(self) -> int:
        return WORLD


def _without_gates(test: Any) -> Any:
    """The test itself: a skip is an attribute of the function or of what is wrapped around it."""
    test = inspect.unwrap(test)
    return types.FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__
    )


def build(backend: str, name: str, launcher: type, home: str) -> type[unittest.TestCase]:
    """The runnable class, to be an attribute of the module `home`."""
    module = _suite_module(backend)
    upstream = module.DistributedTest._DistTestBase
    members: dict[str, Any] = {"__module__": home}
    for method in (*SINGLE, *(WIDER if backend == "WEFT" else ())):
        members[method] = _without_gates(getattr(upstream, method))
    return type(name, (upstream, _World, launcher, module.TestDistBackend), members)
