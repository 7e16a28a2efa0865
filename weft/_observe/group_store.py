"""A connection of its own to the Store that this process's ranks or workers met in."""

from __future__ import annotations

import weakref

import torch.distributed as dist

from weft._torch import current


class GroupStore:
    """For a thread that looks into the Store now and then: another thread may wait on the group's.

    One thread.
    """

    def __init__(self) -> None:
        #: None: there is no group, its Store could not be connected to, or :meth:`drop` was called.
        self.connection: dist.Store | None = None
        self._group: weakref.ref[dist.Store] | int | None = None

    def refresh(self) -> bool:
        """Connects anew where the process is in another group now. Returns whether it is.

        Raises:
            RuntimeError: the Store does not answer; the next call does not try again.
        """
        if dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
            group: weakref.ref[dist.Store] | int | None = weakref.ref(store)
        else:  # Python's objects of an agent and of its Store do not stay
            agent = current.agent()
            store, group = (agent.store, current.agents_made) if agent is not None else (None, None)
        if group == self._group:
            return False
        self._group, self.connection = group, None
        self.connection = None if store is None else store.clone()
        return True

    def drop(self) -> None:
        """Gives up a connection that has failed, until the process is in another group."""
        self.connection = None
