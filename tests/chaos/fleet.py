"""The processes of a case: a caller, a victim and a witness of one RPC group, whose Store nobody kills.

The victim can be replaced by a new process of the same name, so that one fleet lives through many
faults.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import members
from ledger import Ledger
from ports import free_port
from proxy import Network
from workers import Worker, Workers, keep_store, kept_store

JOINING = 40.0  # seconds


class Fleet(Workers):
    """`proxied`: the workers talk over TCP through a Network; else over Unix sockets, with a key file."""

    def __init__(self, proxied: bool, size: int = 3) -> None:
        self.size = size
        self.network = Network() if proxied else None
        self.port = free_port()
        own = {"WEFT_UNIX_SOCKET": "0"} if proxied else {}
        super().__init__(0, {**kept_store(self.port), **own})
        self.key = "" if proxied else self._new_key()
        with self.closed_on_failure():
            self.keeper = self.add()
            self.keeper.call(keep_store, self.port)
            self.members = [self.add() for _ in range(size)]
            for rank in range(size):
                self._enter(rank)
            for member in self.members:
                member.result(JOINING)

    def _new_key(self) -> str:
        path = self.folder / "weft.key"
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
        return str(path)

    def _enter(self, rank: int) -> None:
        network = self.network.port if self.network else 0
        key = {"auth_key_file": self.key} if self.key else {}
        self.members[rank].start(members.join, rank, self.size, self.port, network, **key)

    @property
    def caller(self) -> Worker:
        return self.members[0]

    @property
    def victim(self) -> Worker:
        return self.members[1]

    @property
    def witness(self) -> Worker:
        return self.members[2]

    def replace_victim(self) -> None:
        """A new process under the victim's name; it has joined when this returns."""
        self.victim.kill()
        self.victim.close()
        with contextlib.suppress(OSError):
            self.victim.output_file.unlink()
        self._all.remove(self.victim)
        self.members[1] = self.add()
        self._enter(1)
        self.victim.result(JOINING)

    def try_to_join(self) -> tuple[str, float]:
        """A process that would be the victim's successor: why it does not join, and how long it took."""
        late = self.add()
        said = late.call(members.try_to_join, 1, self.size, self.port, self.key)
        late.kill()
        late.close()
        self._all.remove(late)
        return said

    def add(self, environment: dict[str, str | None] | None = None) -> Worker:
        """As Workers.add, with a name that is new even after some have gone."""
        self.made = getattr(self, "made", 0) + 1
        worker = Worker(f"process{self.made}", self.folder, {**self.environment})
        self._all.append(worker)
        return worker

    def new_ledger(self) -> str:
        """A file for the next case; a late call of the last one may still write into that one's."""
        self.ledgers = getattr(self, "ledgers", 0) + 1
        (self.folder / f"ledger{self.ledgers - 2}").unlink(missing_ok=True)
        path = str(self.folder / f"ledger{self.ledgers}")
        Ledger(path, create=True)
        return path

    def ends(self) -> str:
        """Who has ended though nobody killed it, how, and the last that it said."""
        return "\n".join(
            f"{worker.label} ended with {worker.exit_code}:\n{worker.output()[-6000:]}"
            for worker in self
            if worker.exit_code is not None and not worker.killed
        )

    def close(self) -> None:
        super().close()
        if self.network is not None:
            self.network.close()


def where_all_are(workers: Workers) -> str:
    """Stacks of all processes: Python's by faulthandler, the native ones by gdb where there is one."""
    said = []
    for worker in workers:
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
