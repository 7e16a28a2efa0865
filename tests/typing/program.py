"""A user's program that uses everything: type checkers must be content with it. It runs, too."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft
from weft.pipe import NoChunk, WithDevice, place


@weft.register_function
def double(x: torch.Tensor) -> torch.Tensor:
    assert not weft.cancelled() and (weft.deadline() or 1.0) > 0
    return 2 * x


def calls() -> float:
    weft.publish("linear", torch.jit.script(nn.Linear(2, 2)), batch=weft.Batch(max_requests=4))
    options = weft.RpcBackendOptions(num_worker_threads=4, peer_timeout=10)
    weft.init_rpc("me", rank=0, world_size=1, rpc_timeout=30, request_policy="any")
    info: weft.PublishedInfo = weft.wait_published("me/linear", timeout=10)
    answers: list[torch.Tensor] = [weft.call("me/linear", torch.ones(1, 2))]
    answers.append(weft.call_async("me/linear", torch.ones(1, 2), timeout=5).wait())
    answers.append(weft.call_remote("me/linear", torch.ones(1, 2)).to_here())
    head = weft.RemoteModule("me/cpu", nn.Linear, (2, 1), {"bias": False}, name=info.name + "_")
    answers += [head(answers[0]), head.forward_async(answers[1]).wait()]
    total = rpc.rpc_sync("me", double, args=(weft.snapshot(torch.ones(2)),))
    try:
        rpc.rpc_sync("me", double, args=("no tensor", 1))
    except (weft.RemoteError, TypeError) as error:
        print(type(error).__name__, options.peer_timeout)
    weft.unpublish("linear")
    return torch.cat([a.detach().flatten() for a in (*answers, total)]).sum().item()


def watch(folder: Path) -> None:
    figures: weft.Metrics = weft.metrics()
    sent: float = figures.counters["calls_sent"]
    waiting: list[weft.Waiting] = weft.who_waits()
    threads: dict[str, str] = weft.stacks()
    values: list[weft.RRefInfo] = weft.rref_report()
    ids: list[weft.RRefId] = [value.id for value in values]
    info: dict[str, str] = weft.debug_info()
    names: list[str] = [one.name for one in weft.published()] + weft.registered_functions()
    print(sent, waiting, len(threads), ids, len(info), names, len(weft.metrics_text()))
    with weft.trace(folder / "trace.json"):
        torch.ones(2).sum()
    dumped: Path = weft.dump_flight_record(folder / "rank_0")
    assert dumped.exists()
    weft.wait_all_workers(timeout=10)


def pipeline() -> torch.Tensor:
    stages = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    last = WithDevice(nn.Tanh(), "cpu")
    pipe = weft.Pipe(
        place(stages, [1, 2], ["cpu", "cpu"]).append(last), chunks=2, checkpoint="never"
    )
    out: torch.Tensor = pipe(torch.ones(4, 4)).local_value()
    return out


def train(pipe: weft.Pipe, batch: torch.Tensor) -> torch.Tensor:
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
    loss: torch.Tensor = pipe.step(batch, batch, loss=nn.MSELoss())
    optimizer.step()
    return loss


def group() -> None:
    options = weft.ProcessGroupOptions(interface="lo")
    meet = "file://" + tempfile.mktemp()
    dist.init_process_group("weft", meet, rank=0, world_size=1, pg_options=options)
    dist.all_reduce(weft.empty_like(weft.empty(4)).zero_())
    model = DistributedDataParallel(nn.Linear(2, 2))
    model.register_comm_hook(None, weft.ddp_hook)
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    print(calls(), pipeline(), NoChunk(torch.ones(1)), weft.__version__)
    print(weft.library_path(), weft.cmake_prefix_path())
    watch(Path(tempfile.mkdtemp()))
    rpc.shutdown()
    group()
