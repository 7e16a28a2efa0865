"""A worker's shard of a checkpoint: what it writes, and what it takes out of all of them.

The driver calls the functions over RPC.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.pipe._workers.part import part_of
from weft.pipe._workers.state import (
    layers_state,
    load_layers,
    load_optimizer,
    optimizer_state,
    with_metadata,
)
from weft.pipe._workers.worker_optimizer import State


def _shard(pipe: str) -> State:
    return {"layers": layers_state(pipe), "optimizer": optimizer_state(pipe)}


def take_snapshot(pipe: str) -> None:
    """Copies the state for :func:`write_shard`, which then need not be of now."""
    shard = _shard(pipe)
    copied = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), shard)
    copied["layers"] = with_metadata(copied["layers"], shard["layers"]._metadata)
    part_of(pipe).snapshot = copied


def write_shard(pipe: str, folder: str, number: int, snapshot: bool) -> None:
    """Writes this worker's state, or the last snapshot of it; raises as :func:`save_shard`."""
    part = part_of(pipe)
    shard = part.snapshot if snapshot else _shard(pipe)
    part.snapshot = None
    save_shard(shard, folder, number)


def save_shard(shard: State | None, folder: str, number: int) -> None:
    """Writes a worker's state, whole or not at all.

    Raises:
        RuntimeError: there is none, or it has what :func:`merged_shards` would not read.
    """
    if shard is None:
        raise RuntimeError("this worker has no copy of its state to write: save again")
    _check_readable(shard)
    path = Path(folder) / f"shard-{number}.pt"
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(shard, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _check_readable(shard: State) -> None:
    optimizer = shard["optimizer"]
    entries = {**shard["layers"], "the scheduler's state": optimizer["scheduler"]}
    entries |= {
        f"the optimizer's state of {key}": one for key, one in optimizer["parameters"].items()
    }
    odd = {name: _why_unreadable(one) for name, one in entries.items() if not _is_plain(one)}
    found = {name: why for name, why in odd.items() if why is not None}
    if found:
        raise RuntimeError(
            f"load_checkpoint would not read this worker's state: {', '.join(found)} "
            f"({next(iter(found.values()))}). Let it be of tensors, numbers, texts, lists and "
            "dictionaries, or call torch.serialization.add_safe_globals() at all workers"
        )


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_is_plain, [*value, *value.values()]))
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    return type(value) in (Tensor, type(None), bool, int, float, str)


def _why_unreadable(value: Any) -> str | None:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"WeightsUnpickler error: (.*)", str(error))
        return found[1].partition(". ")[0] if found else str(error)
    return None


def read_shards(pipe: str, folder: str, names: Sequence[str]) -> None:
    """Takes what belongs to this worker out of all shards. The pipeline's layers have these names."""
    load = functools.partial(load_layers, pipe)
    load_optimizer(pipe, take_shards(folder, names, part_of(pipe).layers, load))


def take_shards(
    folder: str,
    names: Sequence[str],
    own: Collection[str],
    load: Callable[[State], tuple[list[str], list[str]]],
) -> State:
    """Loads the state of the ``own`` layers out of all shards; gives that of the optimizers.

    Args:
        names: all layers of the pipeline. Where the checkpoint has others, nothing is loaded.
        load: as :func:`load_layers`.

    Raises:
        FileNotFoundError: the checkpoint is not there.
        KeyError: it is of other layers, or lacks some.
    """
    layers, optimizer = merged_shards(folder)
    layer_of = {key: key.partition(".")[0] for key in layers}
    _check_keys(folder, [key for key in layers if layer_of[key] not in names])
    missing, used = load(layers)
    left = layers.keys() - set(used)
    _check_keys(folder, [key for key in layers if key in left and layer_of[key] in own], missing)
    return optimizer


def _check_keys(folder: str, unexpected: Sequence[str], missing: Sequence[str] = ()) -> None:
    if missing:
        raise KeyError(f"the checkpoint in {folder} lacks {', '.join(missing)}")
    if unexpected:
        raise KeyError(
            f"the checkpoint in {folder} has {', '.join(unexpected)}, which this Pipe does not have"
        )


def merged_shards(folder: str) -> tuple[State, State]:
    """The layers' and the optimizers' state in a checkpoint.

    Raises:
        FileNotFoundError: it is not there.
    """
    layers: State = {}
    metadata: dict[str, Any] = {}
    optimizer: State = {"parameters": {}, "scheduler": None}
    paths = sorted(Path(folder).glob("shard-*.pt"))
    if not paths:
        worker = rpc.get_worker_info().name
        raise FileNotFoundError(
            f"worker '{worker}' finds no checkpoint in {folder}: give a folder that all workers see"
        )
    for path in paths:
        shard = torch.load(path, map_location="cpu", weights_only=True)
        layers.update(shard["layers"])
        metadata.update(getattr(shard["layers"], "_metadata", {}))
        optimizer["parameters"].update(shard["optimizer"]["parameters"])
        optimizer["scheduler"] = optimizer["scheduler"] or shard["optimizer"]["scheduler"]
    return with_metadata(layers, metadata), optimizer
