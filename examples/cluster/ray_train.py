"""Ray Train starts the ranks; their process group is Weft's.

python -m examples.cluster.ray_train --workers 2
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn


def fit_a_line(config: dict[str, Any]) -> None:
    """What every rank runs: Ray has made the process group, with the backend of TorchConfig."""
    torch.manual_seed(dist.get_rank())
    model = prepare_model(nn.Linear(4, 1), move_to_device=False)  # DistributedDataParallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(config["steps"]):
        inputs = torch.randn(64, 4)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    average = loss.detach()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    train.report({"loss": average.item(), "backend": dist.get_backend()})


def main() -> None:
    """The driver; `ray.init` starts Ray on this machine unless RAY_ADDRESS names a cluster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            fit_a_line,
            train_loop_config={"steps": args.steps},
            torch_config=TorchConfig(backend="weft"),
            scaling_config=train.ScalingConfig(num_workers=args.workers),
            run_config=train.RunConfig(storage_path=folder),
        )
        metrics = trainer.fit().metrics
    print(f"{args.workers} ranks over {metrics['backend']}: loss {metrics['loss']:.4f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
