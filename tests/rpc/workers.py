"""Real worker processes for the RPC tests: started, told what to run, waited for, with bounds.

A test says what each worker does; the workers are processes of their own that meet over loopback.
They are forked from a server process that has imported torch and Weft (importing starts no thread),
so that a worker costs milliseconds instead of the seconds an import takes. What a worker runs is
a function of a test module, named to it; what it prints, and what Weft logs, is kept.

    with Group(3) as group:              # three processes that have called init_rpc
        group[0].call(function, 1, 2)    # runs there; its result or its exception comes back
        group[2].kill()
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from waiting import wait_until

HERE = Path(__file__).resolve().parent
BOUND = 100.0  # seconds that anything may take unless a test says otherwise
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["torch", "torch.distributed.rpc", "weft", "weft._observe.trace"])


class WorkerError(Exception):
    """A function failed in a worker; the text is its traceback, `kind` the exception's name."""

    def __init__(self, kind: str, text: str, message: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.message = message


class WorkerDied(Exception):
    """A worker ended while something was expected of it."""


def _resolve(function: tuple[str, str]) -> Callable[..., Any]:
    module, name = function
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def _name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Test modules go by the name of their file, in pytest's process and in the workers."""
    return Path(function.__code__.co_filename).stem, function.__qualname__


def _serve(pipe: Connection, output: str, environment: Mapping[str, str | None]) -> None:
    """The life of a worker process: runs what it is told, one function after the other."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    while True:
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("done", _resolve(function)(*arguments, **options)))
        except BaseException as error:
            traceback.print_exc()
            pipe.send(("failed", type(error).__name__, traceback.format_exc(), str(error)))


class Worker:
    """One process. `start` and `result` are the halves of `call`, for workers that must overlap."""

    processes: BaseContext = _FORKED

    def __init__(self, label: str, folder: Path, environment: Mapping[str, str | None]) -> None:
        self.label = label
        self.killed = False  # by the test
        self.output_file = folder / f"{label}.out"
        self.pipe, theirs = self.processes.Pipe()
        self._process = self.processes.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, str(self.output_file), dict(environment)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.exitcode

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self.pipe.send((_name_of(function), arguments, options))

    def result(self, timeout: float = BOUND) -> Any:
        if not self.pipe.poll(timeout):
            self.dump()
            raise TimeoutError(f"{self.label}: no result after {timeout} s\n{self.output()}")
        try:
            status, *rest = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(BOUND)
            raise WorkerDied(
                f"{self.label} ended with {self._process.exitcode}\n{self.output()}"
            ) from None
        if status == "done":
            return rest[0]
        raise WorkerError(*rest)

    def call(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = BOUND, **options: Any
    ) -> Any:
        self.start(function, *arguments, **options)
        return self.result(timeout)

    def fails(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = BOUND, **options: Any
    ) -> WorkerError:
        """As `call`, for a function that must raise; returns what it raised."""
        self.start(function, *arguments, **options)
        return self.failure(timeout)

    def failure(self, timeout: float = BOUND) -> WorkerError:
        try:
            result = self.result(timeout)
        except WorkerError as error:
            return error
        raise AssertionError(f"{self.label} was to fail, and returned {result!r}\n{self.output()}")

    def output(self) -> str:
        """What the process printed and logged so far."""
        try:
            return self.output_file.read_text(errors="replace")
        except OSError:
            return ""

    def wait_for_output(self, text: str, timeout: float = BOUND) -> str:
        """Waits until `text` has been printed."""
        wait_until(
            lambda: text in self.output(),
            lambda: f"{self.label} says {text!r}, and said:\n{self.output()}",
            timeout,
        )
        return self.output()

    def has_answered_within(self, seconds: float) -> bool:
        """Whether what was started ends in this time: for calls that must go on waiting."""
        return self.pipe.poll(seconds)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP; returns when all threads have stopped."""
        self.signal(signal.SIGSTOP)

        def stopped() -> bool:
            tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
            return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

        wait_until(stopped, lambda: f"{self.label} stops", 10)

    def kill(self) -> None:
        """kill -9, and waits for the end of the process."""
        self.killed = True
        self._process.kill()
        self._process.join(BOUND)

    def dump(self) -> None:
        """Lets the process write down where its threads are."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGUSR1)
            wait([self._process.sentinel], 0.3)

    def close(self) -> None:
        self.pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.kill()


class Workers(Sequence[Worker]):
    """Processes that have done nothing yet; ended, and their files removed, with the `with`."""

    def __init__(self, count: int, environment: Mapping[str, str | None] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weft-rpc-"))
        self.environment: dict[str, str | None] = {
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            **(environment or {}),
        }
        self._all: list[Worker] = []
        with self.closed_on_failure():
            for _ in range(count):
                self.add()

    def add(self, environment: Mapping[str, str | None] | None = None) -> Worker:
        worker = Worker(
            f"process{len(self._all)}", self.folder, {**self.environment, **(environment or {})}
        )
        self._all.append(worker)
        return worker

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def meeting(self) -> str:
        """An init_method of these workers' own: a file, which outlives whoever is killed."""
        return f"file://{self.folder}/meeting"

    def all(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = BOUND, **options: Any
    ) -> list[Any]:
        """Runs it at once on all whom the test has not killed; their results, by rank.

        Raises the failure that came first: others may have failed because of it.
        """
        called = [worker for worker in self if not worker.killed]
        for worker in called:
            worker.start(function, *arguments, **options)
        results: dict[Worker, Any] = {}
        failure = None
        # Every answer is taken, or the next call would get this one's.
        while left := [worker for worker in called if worker not in results]:
            ready = wait([worker.pipe for worker in left], timeout)
            worker = next((one for one in left if one.pipe in ready), left[0])
            try:
                results[worker] = worker.result(timeout if ready else 0)
            except WorkerError as error:
                results[worker] = None
                failure = failure or error
        if failure is not None:
            raise failure
        return [results[worker] for worker in called]

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """For constructors: what fails within ends the processes, which no `with` would."""
        try:
            yield
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def outputs(self) -> str:
        return "\n".join(
            f"--- {w.label} (exit code {w.exit_code})\n{w.output()}" for w in self._all
        )

    def close(self) -> None:
        for worker in self._all:
            worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            print(self.outputs(), file=sys.stderr)
        self.close()


class Group(Workers):
    """Workers that are members of one RPC group over Weft: `worker0` to `worker<count-1>`."""

    def __init__(
        self,
        count: int,
        environment: Mapping[str, str | None] | None = None,
        per_rank: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(count, environment)
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                mine = {**options, **(per_rank[rank] if per_rank else {})}
                worker.start(join, rank, count, self.meeting, **mine)
            for worker in self:
                worker.result()

    def shutdown(self, ranks: Sequence[int] | None = None, timeout: float = BOUND) -> None:
        """rpc.shutdown on all workers at once, or on these."""
        leaving = [self[rank] for rank in (range(len(self)) if ranks is None else ranks)]
        for worker in leaving:
            worker.start(leave)
        for worker in leaving:
            worker.result(timeout)


def kept_store(port: int) -> dict[str, str | None]:
    """What says that none of the workers is to serve the store at this port, as under torchrun.

    PyTorch 2.15 believes the variable only for the address that stands beside it.
    """
    return {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(port)}


# What workers run.


def keep_store(port: int) -> None:
    """Serves the store until this worker ends."""
    import torch.distributed as dist

    keep_store.store = dist.TCPStore("127.0.0.1", port, is_master=True, multi_tenant=True)


def join(
    rank: int, world: int | None, meeting: str, name: str | None = None, **options: Any
) -> int:
    """init_rpc over Weft."""
    import torch.distributed.rpc as rpc

    import weft

    rpc.init_rpc(
        name or f"worker{rank}",
        backend=rpc.BackendType.WEFT,
        rank=rank,
        world_size=world,
        rpc_backend_options=weft.RpcBackendOptions(init_method=meeting, **options),
    )
    return os.getpid()


def leave(graceful: bool = True, timeout: float = 0) -> float:
    """rpc.shutdown; how long it took."""
    import torch.distributed.rpc as rpc

    started = time.monotonic()
    rpc.shutdown(graceful=graceful, timeout=timeout)
    return time.monotonic() - started


def ended_by(wait: Callable[[], object], name: str) -> tuple[str, float]:
    """What ends the wait, Ctrl-C among it, and when. Says first that it waits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(f"waits in {name}", flush=True)
        wait()
    except Exception as error:
        return repr(error), time.monotonic()
    except KeyboardInterrupt:
        return "KeyboardInterrupt", time.monotonic()
    return "nothing", time.monotonic()


def run_file(file: str) -> None:
    """In a worker: as `python FILE` in the file's folder, but that torch is there already."""
    os.chdir(Path(file).parent)
    runpy.run_path(file, run_name="__main__")
