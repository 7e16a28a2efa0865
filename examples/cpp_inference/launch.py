"""Runs it all on this machine: the server, a C++ client and a Python client, in one group.

::

    ./dev bazel build //examples/cpp_inference/...
    ./dev shell -- python -m examples.cpp_inference.launch --binaries FOLDER
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 120  # seconds


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(command: list[str], rank: int, port: int) -> subprocess.Popen[str]:
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": "3",
    }
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def run(binaries: Path, threads: int, requests: int, batch: int) -> str:
    """What the three processes print; raises when one fails or the limit runs out."""
    load = ["--threads", str(threads), "--requests", str(requests)]
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/model.pt"
        subprocess.run(
            [sys.executable, "-m", "examples.cpp_inference.make_model", model], check=True
        )
        port = _free_port()
        commands = [
            [str(binaries / "server"), "--model", model, "--batch", str(batch)],
            [str(binaries / "client"), *load],
            [sys.executable, "-m", "examples.cpp_inference.client", *load],
        ]
        processes = [_start(command, rank, port) for rank, command in enumerate(commands)]
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a process failed: {[process.returncode for process in processes]}")
    return "".join(outputs)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, required=True, help="where server and client lie")
    parser.add_argument("--threads", type=int, default=4, help="of each client")
    parser.add_argument("--requests", type=int, default=1000, help="of each thread")
    parser.add_argument("--batch", type=int, default=16, help="0: each request runs alone")
    arguments = parser.parse_args()
    print(run(arguments.binaries, arguments.threads, arguments.requests, arguments.batch), end="")


if __name__ == "__main__":
    main()
