"""The agents under test: what each suite of PyTorch asks about the agent it runs on.

A fixture names the backend and its options, and says which texts an error must have when a peer has
gone or a call took too long. `weft` is imported only when a Weft fixture is used, so that the
TensorPipe baseline runs without it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch.distributed.rpc as rpc
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import (
    RpcAgentTestFixture,
)

WEFT = "WEFT"
TENSORPIPE = "TENSORPIPE"

# A message of Weft about a peer that is gone names the peer, and says what became of it. Any other
# text (a bare "Connection reset by peer", a timeout) is a failure.
_WHAT_BECAME_OF_IT = (
    "is lost|has left|has shut down|is shutting down|cannot be reached|RPC is no longer running"
)
WEFT_SHUTDOWN_ERROR = rf"(?s)(?=.*worker '[^']+' \(rank \d+\))(?=.*({_WHAT_BECAME_OF_IT}))"
TIMEOUT_ERROR = "RPC ran for more than"

# The message types that torch retries, and those that the faulty suites delay by default.
RETRYABLE_MESSAGES = [
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "RREF_USER_DELETE",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
]
DELAYED_MESSAGES = {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5}


def backend_type(name: str) -> Any:
    """The registered backend `name`. (Each registration makes a new enum: look it up late.)"""
    return rpc.backend_registry.BackendType[name]


class WeftRpcAgentTestFixture(RpcAgentTestFixture):
    """Runs a suite on Weft's agent."""

    @property
    def rpc_backend(self) -> Any:
        importlib.import_module("weft")
        return backend_type("WEFT")

    @property
    def rpc_backend_options(self) -> Any:
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend, init_method=self.init_method
        )

    def get_shutdown_error_regex(self) -> str:
        return WEFT_SHUTDOWN_ERROR

    def get_timeout_error_regex(self) -> str:
        return TIMEOUT_ERROR


class TensorPipeRpcAgentTestFixture(RpcAgentTestFixture):
    """Runs a suite on TensorPipe's agent, and asks of its errors what PyTorch asks: nothing."""

    @property
    def rpc_backend(self) -> Any:
        return backend_type("TENSORPIPE")

    @property
    def rpc_backend_options(self) -> Any:
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend, init_method=self.init_method
        )

    def get_shutdown_error_regex(self) -> str:
        return ".*"

    def get_timeout_error_regex(self) -> str:
        return TIMEOUT_ERROR


class _FaultInjection(RpcAgentTestFixture):
    """What the two faulty agents have in common: which messages fail, and which are held back.

    The faulty backend is registered in the ranks of its own suites only. Registering one replaces
    torch's enum of backends, and inference then tries its options too: no other suite may see that.
    """

    module = ""
    backend_name = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.messages_to_fail = list(RETRYABLE_MESSAGES)
        self.messages_to_delay = dict(DELAYED_MESSAGES)

    @property
    def rpc_backend(self) -> Any:
        importlib.import_module(self.module)
        return backend_type(self.backend_name)

    @property
    def rpc_backend_options(self) -> Any:
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend,
            init_method=self.init_method,
            num_worker_threads=8,
            num_fail_sends=3,
            messages_to_fail=self.messages_to_fail,
            messages_to_delay=self.messages_to_delay,
        )

    def setup_fault_injection(
        self,
        faulty_messages: list[str] | None,
        messages_to_delay: dict[str, float] | None,
    ) -> None:
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay


class WeftFaultyRpcAgentTestFixture(_FaultInjection, WeftRpcAgentTestFixture):
    """Runs a suite on the form of Weft's agent that fails and delays messages on purpose."""

    module = "support.weft_faulty"
    backend_name = "WEFT_FAULTY"


class TensorPipeFaultyRpcAgentTestFixture(_FaultInjection, TensorPipeRpcAgentTestFixture):
    """Runs a suite on TensorPipe's faulty agent."""

    module = "torch.distributed.rpc._testing"
    backend_name = "FAULTY_TENSORPIPE"


_FIXTURES: dict[tuple[str, bool], type[RpcAgentTestFixture]] = {
    (WEFT, False): WeftRpcAgentTestFixture,
    (WEFT, True): WeftFaultyRpcAgentTestFixture,
    (TENSORPIPE, False): TensorPipeRpcAgentTestFixture,
    (TENSORPIPE, True): TensorPipeFaultyRpcAgentTestFixture,
}


def fixture(backend: str, *, faulty: bool) -> type[RpcAgentTestFixture]:
    """The fixture class for `backend`; raises ImportError where there is no such backend."""
    found = _FIXTURES[backend, faulty]
    if backend == WEFT:
        importlib.import_module("weft")
    if issubclass(found, _FaultInjection) and importlib.util.find_spec(found.module) is None:
        raise ImportError(f"there is no module {found.module}")
    return found
