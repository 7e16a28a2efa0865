"""The processes of a case, on one path: what fleets of workers and groups of ranks have in common."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import paths
from clocked_worker import ClockedWorker
from ports import free_port
from proxy import Network
from workers import Worker, Workers, keep_store, kept_store

# Optimizers import torch._dynamo, which takes each new process long.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["torch", "torch.distributed.rpc", "torch._dynamo", "weft"]
)


class Processes(Workers):
    """Members, of which a fault may kill one, and a keeper of the Store, which nobody kills."""

    def __init__(self, name: str, path: paths.Path, size: int) -> None:
        self.name, self.path, self.size = name, path, size
        self.port = free_port()
        super().__init__(0, {**kept_store(self.port), **path.environment})
        self.key = self._new_key() if path.keyed else ""
        if self.key:
            self.environment["WEFT_AUTH_KEY_FILE"] = self.key
        self.network = Network() if path.proxied else None
        self.made = 0
        with self.closed_on_failure():
            self.keeper = self.add()
            self.keeper.call(keep_store, self.port)
            self.members = [self.add() for _ in range(size)]

    def _new_key(self) -> str:
        path = self.folder / "weft.key"
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
        return str(path)

    @property
    def network_port(self) -> int:
        return self.network.port if self.network else 0

    @property
    def victim(self) -> Worker:
        """On whom faults act."""
        raise NotImplementedError

    def try_to_join(self) -> tuple[str, float]:
        """A new process that would join: why it does not, and how long that took."""
        raise NotImplementedError

    def add(self, environment: dict[str, str | None] | None = None) -> Worker:
        """As Workers.add, with a name that is new even after some have gone."""
        self.made += 1
        kind = ClockedWorker if self.path.clocks and self.made > 1 else Worker  # not the keeper
        worker = kind(f"process{self.made}", self.folder, {**self.environment})
        self._all.append(worker)
        return worker

    def remove(self, worker: Worker) -> None:
        """Kills it, and forgets what it said."""
        worker.kill()
        worker.close()
        with contextlib.suppress(OSError):
            worker.output_file.unlink()
        self._all.remove(worker)

    def close(self) -> None:
        super().close()
        if self.network is not None:
            self.network.close()

    def ends(self) -> str:
        """Who has ended though nobody killed it, how, and the last that it said."""
        return "\n".join(
            f"{worker.label} ended with {worker.exit_code}:\n{worker.output()[-6000:]}"
            for worker in self
            if worker.exit_code is not None and not worker.killed
        )

    def where_all_are(self) -> str:
        """Stacks of all processes: Python's by faulthandler, native ones by gdb if there is one."""
        said = []
        for worker in self:
            worker.dump()
            said.append(f"--- {worker.label} (pid {worker.pid}, exit code {worker.exit_code})")
            said.append(worker.output()[-20_000:])
            with contextlib.suppress(OSError):
                tasks = Path(f"/proc/{worker.pid}/task").iterdir()
                said += [f"{task.name} {(task / 'comm').read_text().strip()}" for task in tasks]
            if shutil.which("gdb") and os.path.exists(f"/proc/{worker.pid}"):
                command = ["gdb", "-p", str(worker.pid), "-batch", "-ex", "thread apply all bt 25"]
                with contextlib.suppress(subprocess.SubprocessError):
                    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                    said.append(done.stdout[-30_000:])
        return "\n".join(said)
