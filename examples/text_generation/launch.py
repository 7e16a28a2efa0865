"""Runs it all on this machine: two C++ workers with half a model each, and the HTTP server.

::

    ./dev bazel build //examples/cpp_inference:server //examples/text_generation:http
    ./dev shell -- python -m examples.text_generation.launch --binaries FOLDER
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

LIMIT = 120  # seconds


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, prompt: str, count: int) -> str:
    """What any HTTP client does."""
    address = f"http://127.0.0.1:{port}/?count={count}"
    with urllib.request.urlopen(address, prompt.encode(), timeout=LIMIT) as answer:
        return answer.read().decode()


def run(binaries: Path, models: Path, prompt: str, count: int) -> str:
    """The prompt and what follows it; raises when a process fails."""
    server, http = binaries / "cpp_inference/server", binaries / "text_generation/http"
    port = _free_port()
    part = ["--name", "part", "--batch", "0"]
    commands = [
        [server, "--worker", "first", "--model", models / "first.pt", *part],
        [server, "--worker", "second", "--model", models / "second.pt", *part],
        [http, "--model", models / "front.pt", "--listen", str(port)],
    ]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "3"}
    processes = [
        subprocess.Popen(
            command,
            env={"OMP_NUM_THREADS": "1", **os.environ, **meeting, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        if not processes[2].stdout.readline().startswith("http://"):  # it listens, or has ended
            raise RuntimeError("the HTTP server did not start")
        following = ask(port, prompt, count)
        processes[2].terminate()  # it leaves the group, and the others with it
        codes = [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        raise RuntimeError(f"a process failed: {codes}")
    return prompt + following


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, required=True, help="bazel-bin/examples")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--prompt", default="First Citizen:\n")
    parser.add_argument("--count", type=int, default=300, help="letters to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make = ["-m", "examples.text_generation.make_model", folder, "--steps", str(args.steps)]
        subprocess.run([sys.executable, *make], check=True)
        print(run(args.binaries, Path(folder), args.prompt, args.count))


if __name__ == "__main__":
    main()
