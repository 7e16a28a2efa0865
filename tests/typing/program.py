"""A user's program that uses everything: type checkers must be content with it. It runs, too."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import nn

import weft
from weft.pipe import NoChunk, WithDevice, place


@weft.register_function
def double(x: torch.Tensor) -> torch.Tensor:
    assert not weft.cancelled() and (weft.deadline() or 1.0) > 0
    return 2 * x


def calls() -> float:
    weft.publish("linear", torch.jit.script(nn.Linear(2, 2)), batch=weft.Batch(max_requests=4))
    weft.init_rpc("me", rank=0, world_size=1, rpc_timeout=30, request_policy="any")
    info: weft.PublishedInfo = weft.wait_published("me/linear", timeout=10)
    answers: list[torch.Tensor] = [weft.call("me/linear", torch.ones(1, 2))]
    answers.append(weft.call_async("me/linear", torch.ones(1, 2), timeout=5).wait())
    answers.append(weft.call_remote("me/linear", torch.ones(1, 2)).to_here())
    head = weft.RemoteModule("me/cpu", nn.Linear, (2, 1), {"bias": False}, name=info.name + "_")
    answers += [head(answers[0]), head.forward_async(answers[1]).wait()]
    total = rpc.rpc_sync("me", double, args=(weft.snapshot(torch.ones(2)),))
    sent: float = weft.metrics().counters["calls_sent"]
    print(sent, len(weft.rref_report()), weft.who_waits(), len(weft.metrics_text()))
    weft.unpublish("linear")
    return torch.cat([a.detach().flatten() for a in (*answers, total)]).sum().item()


def pipeline() -> torch.Tensor:
    stages = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    last = WithDevice(nn.Tanh(), "cpu")
    pipe = weft.Pipe(
        place(stages, [1, 2], ["cpu", "cpu"]).append(last), chunks=2, checkpoint="never"
    )
    out: torch.Tensor = pipe(torch.ones(4, 4)).local_value()
    return out


def group() -> None:
    options = weft.ProcessGroupOptions(interface="lo")
    meet = "file://" + tempfile.mktemp()
    dist.init_process_group("weft", meet, rank=0, world_size=1, pg_options=options)
    dist.all_reduce(weft.empty(4).zero_())
    dist.destroy_process_group()


if __name__ == "__main__":
    print(calls(), pipeline(), NoChunk(torch.ones(1)), weft.__version__, weft.library_path())
    rpc.shutdown()
    group()
