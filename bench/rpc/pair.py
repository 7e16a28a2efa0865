"""Two worker processes of one backend. While the other backend is measured they are stopped
(SIGSTOP), because TensorPipe's shared-memory transport spins when idle and would be measured too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing

from bench.limits import pin
from bench.rpc import metrics, namespaces

BACKENDS = ("WEFT", "TENSORPIPE", "TENSORPIPE_UV", "WEFT_TCP", "WEFT_TLS")
# WEFT@FOLDER: another build of Weft, to compare two states of the code in one run.
BUILD_MARK = "@"
# Longer than any pair is stopped: a stopped peer must not be taken for a lost one.
PATIENCE = 1e6


def init_options(backend: str) -> rpc.RpcBackendOptions:
    """The options that a side is measured with."""
    if backend.startswith("TENSORPIPE"):
        uv_only = backend.endswith("_UV")
        return rpc.TensorPipeRpcBackendOptions(
            rpc_timeout=120,
            _transports=["uv"] if uv_only else None,
            _channels=["basic", "mpt_uv"] if uv_only else None,
        )
    import weft

    return weft.RpcBackendOptions(rpc_timeout=120, peer_timeout=PATIENCE)


@contextlib.contextmanager
def interpreters_with(folder: str) -> Iterator[None]:
    """Interpreters started within find Weft in ``folder``, from their start: torch imports it."""
    before = os.environ.get("PYTHONPATH")
    if folder:
        os.environ["PYTHONPATH"] = folder
    try:
        yield
    finally:
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _work(
    rank: int,
    side: str,
    port: int,
    control: Connection,
    hosts: namespaces.TwoHosts | None,
    cores: tuple[int, int] | None,
) -> None:
    pin(cores and cores[rank])
    torch.set_num_threads(1)
    master = "127.0.0.1"
    if hosts is not None:
        namespaces.enter(hosts.names[rank])
        master = hosts.addresses[0]
        os.environ.update(TP_SOCKET_IFNAME=namespaces.CABLE, GLOO_SOCKET_IFNAME=namespaces.CABLE)
    backend, _, folder = side.partition(BUILD_MARK)
    os.environ.update(MASTER_ADDR=master, MASTER_PORT=str(port))
    if backend in ("WEFT_TCP", "WEFT_TLS"):
        os.environ["WEFT_UNIX_SOCKET"] = "0"
        os.environ["WEFT_ENCRYPTION"] = "on" if backend == "WEFT_TLS" else "off"
    import weft  # registers the backend

    if folder and not Path(weft.__file__).is_relative_to(Path(folder).resolve()):
        raise RuntimeError(f"{side} would measure the Weft of {weft.__file__}")
    rpc.init_rpc(
        "caller" if rank == 0 else metrics.PEER,
        backend=rpc.BackendType[backend.split("_")[0]],
        rank=rank,
        world_size=2,
        rpc_backend_options=init_options(backend),
    )
    control.send("ready")
    while (name := control.recv()) is not None:
        control.send(metrics.METRICS[name]())
    rpc.shutdown()


def two_cores() -> tuple[int, int] | None:
    """A core for each of two processes; None where this process may not use two."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Pair:
    """A caller and a callee; ``measure`` wakes them, runs one metric and stops them again.

    With ``cores`` each stays on a core of its own.
    """

    def __init__(
        self,
        backend: str,
        hosts: namespaces.TwoHosts | None = None,
        cores: tuple[int, int] | None = None,
    ) -> None:
        self.backend = backend
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self._processes = []
        self._controls: list[Connection] = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(rank, backend, port, theirs, hosts, cores), daemon=True
            )
            with interpreters_with(backend.partition(BUILD_MARK)[2]):
                process.start()
            self._processes.append(process)
            self._controls.append(ours)
        for control in self._controls:
            self._answer(control)
        self._signal(signal.SIGSTOP)

    def _answer(self, control: Connection) -> object:
        if not control.poll(180):
            raise TimeoutError(f"{self.backend}: no answer within 180 s")
        return control.recv()

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None:
                os.kill(process.pid, number)

    def measure(self, name: str) -> metrics.Figures:
        """Runs the metric called ``name`` in the caller."""
        self._signal(signal.SIGCONT)
        try:
            self._controls[0].send(name)
            figures = self._answer(self._controls[0])
            assert isinstance(figures, dict)
            return figures
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends both processes, in order if they can."""
        self._signal(signal.SIGCONT)
        for control in self._controls:
            control.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
