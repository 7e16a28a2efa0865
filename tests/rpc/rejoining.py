"""A group whose workers can be killed and started again."""

from __future__ import annotations

from ports import free_port
from workers import Workers, join, keep_store, kept_store, leave


class Static(Workers):
    """A group of fixed size that meets through a store in a process of its own, which nobody kills."""

    def __init__(self, count: int, **options) -> None:
        self.count = count
        self.options = {
            "heartbeat_interval": 0.2,
            "peer_timeout": 2.0,
            "rpc_timeout": 20,
            **options,
        }
        self.port = free_port()
        super().__init__(count, kept_store(self.port))
        self.keeper = self.add()
        self.keeper.call(keep_store, self.port)
        for rank in range(count):
            self.enter(self[rank], rank)
        for rank in range(count):
            self[rank].result()

    def enter(self, worker, rank: int, name: str | None = None) -> None:
        place = f"tcp://127.0.0.1:{self.port}"
        worker.start(join, rank, self.count, place, name=name, **self.options)

    def again(self, rank: int):
        """The same rank and name, in a new process."""
        worker = self.add()
        self.enter(worker, rank)
        worker.result()
        return worker

    def shutdown(self, workers) -> None:
        for worker in workers:
            worker.start(leave)
        for worker in workers:
            worker.result(20)
