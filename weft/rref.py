"""Who refers to what: a report of the values and references of this worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from weft._torch import current

_MAX_OBJECTS = 100_000  # how many objects of one value are searched


class RRefId(NamedTuple):
    """The id that torch's messages print as ``GloballyUniqueId``.

    ::

        made_here = [info for info in weft.rref_report() if info.id.created_on == 0]

    Attributes:
        created_on: the rank of the worker that made the value's first reference.
        local_id: its number among those.
    """

    created_on: int
    local_id: int


@dataclasses.dataclass(frozen=True)
class RRefInfo:
    """A value owned here that others refer to, or a reference held here to another's value.

    ::

        largest = max(weft.rref_report(), key=lambda info: info.bytes or 0, default=None)

    Attributes:
        id: the value's id, the same on all workers.
        type: the value's type; for a reference held here, what torch knows of it (``PyObject`` for
            Python values).
        owner: the name of the worker that has the value.
        holders: names of the workers that refer to it, once for each reference; for a reference
            held here, this worker's name.
        age: seconds since Weft first saw it; None for a reference that came directly from its owner,
            and for a value whose references are all in transit.
        bytes: of the tensors found in a value owned here (containers, modules, attributes); each
            storage counts once and whole. None for a reference, and for a value that is not there
            yet or is an error.
    """

    id: RRefId
    type: str
    owner: str
    holders: tuple[str, ...]
    age: float | None
    bytes: int | None


def rref_report() -> list[RRefInfo]:
    """The values of this worker that others refer to, then the references that it holds itself.

    ::

        for info in weft.rref_report():
            print(info.owner, info.type, info.holders, info.bytes)

    Raises:
        RuntimeError: this process is in no RPC group over Weft.
    """
    agent = current.agent()
    if agent is None:
        raise RuntimeError("weft.rref_report() needs init_rpc with the backend WEFT first")
    own_name = agent.get_worker_info().name
    return [
        RRefInfo(RRefId(*key), kind, owner, tuple(holders) if owned else (own_name,), age, size)
        for key, owned, kind, owner, holders, age, size in agent.rref_report()
    ]


def tensor_bytes(value: object) -> int:
    """The bytes of the tensors found in ``value``; each storage counts once."""
    storages: dict[int, int] = {}
    looked_at: set[int] = set()
    rest: list[Any] = [value]
    while rest and len(looked_at) < _MAX_OBJECTS:
        item = rest.pop()
        if id(item) in looked_at:
            continue
        looked_at.add(id(item))
        if isinstance(item, torch.Tensor):
            _add_storages(item, storages)
        elif isinstance(item, Mapping):
            rest.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            rest.extend(item)
        elif isinstance(item, torch.jit.ScriptModule):
            rest.extend((*item.parameters(), *item.buffers()))
        elif not isinstance(item, (str, bytes, int, float, type)):
            rest.extend(_attributes(item))
    return sum(storages.values())


def _add_storages(tensor: torch.Tensor, storages: dict[int, int]) -> None:
    try:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse tensors and subclasses without storage
        storages[id(tensor)] = tensor.nbytes if tensor.layout == torch.strided else 0


def _attributes(item: object) -> Iterable[Any]:
    attributes = getattr(item, "__dict__", None)
    return attributes.values() if isinstance(attributes, dict) else ()
