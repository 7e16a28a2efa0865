"""The two-worker example of PyTorch's RemoteModule documentation, over Weft.

Worker 0 makes an `nn.Linear(20, 30)` that lives on worker 1, and sends it 128 inputs. Start the two
in two shells, in any order:

    python -m examples.remote_module.worker --rank 0
    python -m examples.remote_module.worker --rank 1
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.nn import RemoteModule


def join(backend: str, rank: int) -> None:
    """Joins the group of two as worker0 or worker1."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    if backend == "WEFT":
        import weft

        options = weft.RpcBackendOptions(rpc_timeout=60)
    else:
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=60)
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.backend_registry.BackendType[backend],
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )


def use() -> None:
    """What worker 0 does; everything here but the printing is in PyTorch's documentation."""
    remote_linear_module = RemoteModule("worker1/cpu", nn.Linear, args=(20, 30))
    inputs = torch.randn(128, 20)
    output = remote_linear_module.forward_async(inputs).wait()

    # The same layer, computed here with the weights of there.
    weight, bias = [parameter.to_here() for parameter in remote_linear_module.remote_parameters()]
    torch.testing.assert_close(output, nn.functional.linear(inputs, weight, bias))
    print(f"{tuple(inputs.shape)} went to worker1, {tuple(output.shape)} came back, as it should")


def main() -> None:
    """One of the two workers, by --rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True)
    parser.add_argument("--backend", choices=("WEFT", "TENSORPIPE"), default="WEFT")
    args = parser.parse_args()
    join(args.backend, args.rank)
    if args.rank == 0:
        use()
    rpc.shutdown(timeout=60)  # waits for the other worker: worker 1 serves from in here


if __name__ == "__main__":
    main()
