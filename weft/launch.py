"""``python -m weft.launch --workers 2 train.py …``: a program and its workers, on this machine.

The program joins their group as ``weft.init_rpc("driver", rank=0, world_size=3)``. The others,
``worker1``, ``worker2`` …, are :mod:`weft.worker`; they import what the program imports. All end when
the program does. OMP_NUM_THREADS is 1 unless it is set.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import wait

_PATIENCE = 10.0  # seconds for the workers to leave once the program has ended


class Workers:
    """The workers of one program.

    Args:
        environment: of all of them; says where the group meets.
        restarts: how many that end too early are started again, in all.
    """

    def __init__(self, environment: dict[str, str], restarts: int) -> None:
        self._environment = environment
        self._restarts = restarts
        # With their ranks, by the pidfds that tell when they end.
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}

    def start(self, rank: int) -> None:
        """Starts the worker of this rank."""
        process = subprocess.Popen(
            [sys.executable, "-m", "weft.worker", f"worker{rank}"],
            # c10d would log a stack in C++ when the program ends, and the Store with it.
            env={"TORCH_CPP_LOG_LEVEL": "ERROR", **self._environment, "RANK": str(rank)},
            start_new_session=True,  # Ctrl-C is for the program, which ends the workers
        )
        self._running[os.pidfd_open(process.pid)] = rank, process

    def watch(self, program: subprocess.Popen[bytes]) -> None:
        """Until the program has ended: starts workers again."""
        of_program = os.pidfd_open(program.pid)
        try:
            while of_program not in (ended := wait([of_program, *self._running])):
                for pidfd in ended:
                    self._lost(pidfd)
        finally:
            os.close(of_program)

    def end(self, patience: float = _PATIENCE) -> None:
        """Waits until the workers have left, and kills those that do not."""
        while self._running:
            for pidfd in wait(self._running, patience) or list(self._running):
                self._running[pidfd][1].kill()
                self._forget(pidfd)

    def _lost(self, pidfd: int) -> None:
        rank, status = self._forget(pidfd)
        again = status != 0 and self._restarts > 0
        if status != 0:
            what = "it is started again" if again else "calls to it fail"
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            print(f"weft.launch: worker{rank} has ended with {how}; {what}", file=sys.stderr)
        if again:
            self._restarts -= 1
            self.start(rank)

    def _forget(self, pidfd: int) -> tuple[int, int]:
        rank, process = self._running.pop(pidfd)
        os.close(pidfd)
        return rank, process.wait()


def parse(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m weft.launch",
        description="Runs a program, and workers that serve what it asks of them, on this machine.",
    )
    parser.add_argument("--workers", type=_count, required=True, help="how many workers")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="how many workers that end too early are started again, in all (0)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    found = parser.parse_args(arguments)
    if not found.module and not os.path.exists(found.program):
        parser.error(f"no such file: {found.program}")
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return int(text)


def main(arguments: list[str]) -> int:
    """Runs it; the program's exit status."""
    given = parse(arguments)
    command = ["-m", given.program] if given.module else [given.program]
    environment = _environment(given.workers + 1, given.program)
    workers = Workers(environment, given.restarts)
    program = subprocess.Popen(
        [sys.executable, *command, *given.arguments], env={**environment, "RANK": "0"}
    )
    try:
        signal.signal(signal.SIGTERM, lambda *_: program.terminate())
        signal.signal(signal.SIGINT, lambda *_: None)  # the program hears Ctrl-C itself
        for rank in range(1, given.workers + 1):
            workers.start(rank)
        workers.watch(program)
        status = program.wait()
    except BaseException:
        program.terminate()
        workers.end(patience=0)
        raise
    workers.end(_PATIENCE if status == 0 else 0)
    return status if status >= 0 else 128 - status


def _environment(size: int, program: str) -> dict[str, str]:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = os.path.dirname(os.path.abspath(program))
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": "1",  # as torchrun: the processes share the cores
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "PYTHONPATH": os.pathsep.join(paths),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
