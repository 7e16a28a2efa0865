"""Ray places actors and starts them again; what they serve is called through Weft.

python -m examples.cluster.ray_actors --actors 2 --kills 1

Each actor publishes a scripted module. Calls go from process to process, not through Ray's object
store, and run without the GIL of the actor.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

import ray
import torch
import torch.distributed.rpc as rpc
from torch import nn

import weft

PATIENCE = 300.0  # seconds for an actor to be started again: it imports torch anew


class Encoder(nn.Module):
    """What is served: a layer, and the process it runs in."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.pid = pid

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.layer(x).relu(), self.pid


@ray.remote(max_restarts=-1)
class Server:
    """One actor, one worker of the RPC group. Ray calls the constructor again after a death."""

    def __init__(self, rank: int, meeting: str) -> None:
        torch.manual_seed(rank)
        weft.publish("encoder", torch.jit.script(Encoder(os.getpid())))
        # Without a world_size the group is dynamic: who is started again joins it again.
        weft.init_rpc(f"server{rank}", rank=rank, init_method=meeting)

    def ready(self) -> int:
        return os.getpid()


def call(target: str, *args: Any) -> Any:
    """The answer; while the worker is lost, asks again until Ray has started it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return weft.call(target, *args, timeout=10)
        except RuntimeError as error:
            if time.monotonic() > until:
                raise
            print(f"{str(error).splitlines()[0]}; asking again", flush=True)
            time.sleep(0.5)


def main() -> None:
    """The driver is rank 0 and serves the Store in which the workers meet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--port", type=int, default=29500, help="where the group meets")
    args = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False)
    meeting = f"tcp://{ray.util.get_node_ip_address()}:{args.port}"
    weft.init_rpc("driver", rank=0, init_method=meeting)
    servers = [Server.remote(rank, meeting) for rank in range(1, args.actors + 1)]
    ray.get([server.ready.remote() for server in servers])

    x = torch.randn(8, 16)
    for kill in range(args.kills):
        target = f"server{kill % args.actors + 1}/encoder"
        before, pid = call(target, x)
        os.kill(pid, signal.SIGKILL)  # on a cluster, a machine that fails
        after, new_pid = call(target, x)
        print(f"{target} is another process: {new_pid != pid}", flush=True)
        print(f"the same answer: {torch.equal(before, after)}", flush=True)
    for server in servers:
        ray.kill(server)
    rpc.shutdown(graceful=False)  # the actors do not leave in order
    ray.shutdown()


if __name__ == "__main__":
    main()
