"""The tests that PyTorch wrote about TensorPipe's options, said again about Weft's.

A form has the name of the test it stands in for and asks the same of `weft.RpcBackendOptions`; mixed
in before PyTorch's class it replaces that test and leaves the others as they are.
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import torch.distributed.rpc as rpc
from torch.testing._internal.dist_utils import dist_init, worker_name


def weft_options(**options: Any) -> Any:
    """Weft's own options class, called directly as a user would."""
    return importlib.import_module("weft").RpcBackendOptions(**options)


class OtherOptions(rpc.RpcBackendOptions):
    """Options of some other backend."""


class AgentRpcForms:
    """Stands in for those tests of TensorPipeAgentRpcTest that name TensorPipeRpcBackendOptions."""

    def _init(self, **arguments: Any) -> None:
        rpc.init_rpc(
            name=worker_name(self.rank),
            rank=self.rank,
            world_size=self.world_size,
            **arguments,
        )

    def test_mismatched_type_for_options(self) -> None:
        options = OtherOptions()
        options.init_method = self.init_method
        expected = r"`rpc_backend_options` must be a `(weft\.)?RpcBackendOptions`"
        with self.assertRaisesRegex(TypeError, expected):
            self._init(backend=self.rpc_backend, rpc_backend_options=options)

    def test_infer_backend_from_options(self) -> None:
        importlib.import_module("weft")
        options = weft_options(init_method=self.init_method)
        self._init(rpc_backend_options=options)  # no backend
        agent = rpc.api._get_current_rpc_agent()
        self.assertEqual(type(agent).__name__, "WeftAgent")

    @dist_init(setup_rpc=False)
    def test_set_and_get_num_worker_threads(self) -> None:
        threads = 27
        options = weft_options(init_method=self.init_method, num_worker_threads=threads)
        self._init(backend=self.rpc_backend, rpc_backend_options=options)
        info = rpc.api._get_current_rpc_agent().get_debug_info()
        self.assertEqual(int(info["agent.thread_pool_size"]), threads)
        rpc.shutdown()

    @dist_init(setup_rpc=False)
    def test_tensorpipe_set_default_timeout(self) -> None:
        timeout = 100
        options = weft_options(init_method=self.init_method, rpc_timeout=timeout)
        self._init(backend=self.rpc_backend, rpc_backend_options=options)
        self.assertEqual(rpc.get_rpc_timeout(), timeout)
        rpc.shutdown()

    @dist_init(setup_rpc=False)
    def test_tensorpipe_options_throw_on_timedelta_timeout(self) -> None:
        with self.assertRaises(TypeError):
            weft_options(init_method=self.init_method, rpc_timeout=timedelta())

    @dist_init(setup_rpc=False)
    def test_dynamic_rpc_init_rpc_without_rank(self) -> None:
        cases = {
            self.init_method: "rank parameter missing",
            "env://": "environment variable RANK expected",
            "tcp://127.0.0.1:23456": "rank parameter missing",
        }
        for init_method, expected in cases.items():
            with self.assertRaisesRegex(ValueError, expected):
                rpc.init_rpc(
                    name=worker_name(self.rank),
                    backend=self.rpc_backend,
                    rpc_backend_options=weft_options(init_method=init_method),
                )


class FaultyOptionsForms:
    """Stands in for the tests that compare the backend with FAULTY_TENSORPIPE."""

    @dist_init
    def test_verify_backend_options(self) -> None:
        options = self.rpc_backend_options
        self.assertEqual(self.rpc_backend, rpc.backend_registry.BackendType.WEFT_FAULTY)
        self.assertEqual(options.num_worker_threads, 8)
        self.assertEqual(options.num_fail_sends, 3)
        self.assertEqual(len(options.messages_to_fail), 4)
        self.assertEqual(len(options.messages_to_delay), 2)
        self.assertEqual(options.rpc_timeout, rpc.constants.DEFAULT_RPC_TIMEOUT_SEC)
