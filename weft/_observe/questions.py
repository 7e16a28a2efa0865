"""Ranks ask each other, through the Store of their process group, what they do; for reports of hangs."""

from __future__ import annotations

import contextlib
import threading
import time

import torch.distributed as dist

from weft._observe.doing import doing
from weft._observe.group_store import GroupStore

_KEY = "weft/doing"  # with the rank: how many questions it was asked; with a number: an answer
_MOST = 4  # questions that are answered at once; older ones have nobody who waits


class Questions:
    """This rank's questions and answers. One thread, which looks now and then whether it was asked.

    While it waits for an answer it answers, so two ranks may ask each other.
    """

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self._store = GroupStore()
        self._answered = 0

    def answer(self) -> None:
        """Says what this process does, if another rank has asked since the last time."""
        with contextlib.suppress(Exception):  # a Store that has ended
            if self._connect():
                self._answer()

    def ask(self, ranks: list[int], patience: float, slice_: float) -> dict[int, str]:
        """What these global ranks do; without those that do not answer within ``patience`` seconds."""
        found: dict[int, str] = {}
        end = time.monotonic() + patience
        with contextlib.suppress(Exception):
            store = self._connect()
            if store is None:
                return found
            keys = {rank: f"{_KEY}/{rank}/{store.add(f'{_KEY}/{rank}', 1)}" for rank in ranks}
            while len(found) < len(keys) and time.monotonic() < end:
                for rank, key in keys.items():
                    if rank not in found and store.check([key]):
                        found[rank] = store.get(key).decode()
                        store.delete_key(key)
                self._answer()
                if len(found) == len(keys) or self._ended.wait(slice_):
                    break
        return found

    def _connect(self) -> dist.Store | None:
        """A connection to the default group's Store; None: no group, or its Store has failed."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            self._store.drop()
            return None
        if self._store.refresh():
            self._answered = 0
        return self._store.connection

    def _answer(self) -> None:
        store = self._store.connection
        if store is None:
            return
        own = f"{_KEY}/{dist.get_rank()}"
        try:
            asked = store.add(own, 0)
            for number in range(max(self._answered, asked - _MOST) + 1, asked + 1):
                store.set(f"{own}/{number}", doing())
            self._answered = asked
        except Exception:
            self._store.drop()
            raise
