"""A process of one side: reads metrics' names, one per line, and answers each with a line of JSON.

``python -m bench.pipe.worker SIDE``, in the root of the checkout. Needs torch alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch


def _measure(side: str) -> Callable[[str], dict[str, float]]:
    if side == "pipelining":
        from bench.pipe import pipelining

        pipelining.join()
        return pipelining.measure
    if side == "workers":
        from bench.pipe import workers

        workers.join()
        return workers.measure
    from bench.pipe import metrics, sides

    made = sides.SIDES[side]()
    return lambda name: metrics.METRICS[name](made)


def main() -> None:
    """Serves until its input ends."""
    # What libraries print must not get into the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.manual_seed(0)
    measure = _measure(sys.argv[1])
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # RPC agents of a group of one have nobody to say goodbye to


if __name__ == "__main__":
    main()
