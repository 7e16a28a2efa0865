"""The same training on a Ray cluster: the workers are actors, which Ray places and restarts.

    pip install "ray==2.60.*"
    python -m examples.pipeline_workers.ray_launch --kills 3

Without a cluster (RAY_ADDRESS), Ray starts one on this machine.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

import ray

import weft.worker
from examples.pipeline_workers.train import WORKERS, drive, parse


@ray.remote(num_cpus=1, max_restarts=-1)
class Worker:
    """A process that is a worker of the group. Ray makes it again, on any machine, when it ends."""

    def __init__(self, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        threading.Thread(target=weft.worker.main, args=([],), daemon=True).start()

    def is_there(self) -> bool:
        """Answers once Ray has started the process."""
        return True


def main() -> int:
    """Starts the actors, then drives them."""
    settings = parse()
    ray.init(include_dashboard=False)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    meeting = {
        "MASTER_ADDR": ray.util.get_node_ip_address(),  # where the driver is
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(len(WORKERS)),
    }
    os.environ.update(meeting)
    actors = [Worker.remote(meeting | {"RANK": str(rank)}) for rank in range(1, len(WORKERS))]
    try:
        ray.get([actor.is_there.remote() for actor in actors])
        return drive(settings)
    finally:
        del actors  # which ends them
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
