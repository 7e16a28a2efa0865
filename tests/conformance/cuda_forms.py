"""What PyTorch's suites of CUDA tensors say about TensorPipe's options and texts, said about Weft's.

The numbers of some tests are smaller: their devices are emulated on the CPU (tests/emulated_cuda).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.dist_utils import worker_name
from torch.testing._internal.distributed.rpc import rpc_test

from conformance.forms import weft_options

_NO_MAP = r"the device map for that worker does not name cuda:0.*set_device_map\('worker\d'"


class AgentCudaRpcForms:
    """Stands in for tests of TensorPipeAgentCudaRpcTest."""

    def _next(self) -> str:
        return worker_name((self.rank + 1) % self.world_size)

    def _init(self, options: Any) -> None:
        rpc.init_rpc(
            name=worker_name(self.rank),
            backend=self.rpc_backend,
            rank=self.rank,
            world_size=self.world_size,
            rpc_backend_options=options,
        )

    @skip_if_lt_x_gpu(2)
    def test_device_maps_in_options(self) -> None:
        maps = {self._next(): {0: 1, 1: 0}}
        self._init(weft_options(init_method=self.init_method, device_maps=maps))
        first, second = rpc.rpc_sync(
            self._next(),
            rpc_test.TensorPipeAgentCudaRpcTest._gpu_add_multi_gpu,
            args=(torch.zeros(2).to(0), torch.ones(2).to(1)),
        )
        self.assertEqual(first, torch.ones(2).to(1))
        self.assertEqual(second, -torch.ones(2).to(0))
        rpc.shutdown()

    @skip_if_lt_x_gpu(2)
    def test_devices_option_mismatch_reverse(self) -> None:
        options = weft_options(
            init_method=self.init_method, device_maps={self._next(): {0: 1}}, devices=[0]
        )
        with self.assertRaisesRegex(
            ValueError,
            "Node worker0 has unexpected target devices in its device map for worker1",
        ):
            self._init(options)

    def _test_device_maps_missing_config(self, mode: Any) -> None:
        self._refused(mode, torch.add, torch.zeros(2).to(0))

    def _test_device_maps_missing_config_response(self, mode: Any) -> None:
        self._refused(mode, rpc_test.TensorPipeAgentCudaRpcTest._add_to_gpu, torch.zeros(2))

    def _refused(self, mode: Any, function: Any, tensor: torch.Tensor) -> None:
        with self.assertRaisesRegex(RuntimeError, _NO_MAP):
            if mode == rpc_test.RPCExecMode.SYNC:
                rpc.rpc_sync(self._next(), function, args=(tensor, 1))
            else:
                rpc.remote(self._next(), function, args=(tensor, 1)).to_here()
        # RPC still works.
        self.assertEqual(rpc.rpc_sync(self._next(), torch.add, args=(torch.ones(2), 1)).sum(), 4)

    def _test_owner_rref_forward_synchronization(
        self, local_device: str, remote_device: str
    ) -> None:
        """With matrices of a hundredth of the size."""
        if self.rank != 0:
            return
        options = self.rpc_backend_options
        options.set_device_map("w0", {local_device: remote_device})
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
        linear = rpc.remote("w0", torch.nn.Linear, (256, 2000))
        model = linear.remote().to(remote_device)
        for _ in range(30):
            output = model.rpc_sync().forward(torch.rand(128, 256).to(local_device))
            self.assertEqual(rpc.RRef(output).remote().sum().to_here().item(), output.sum().item())
        rpc.shutdown()
