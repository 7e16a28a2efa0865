"""Starts four workers, kills one at random every few seconds, and starts it again.

python -m examples.elastic.launch
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess

from examples.elastic import worker as worker_module
from examples.elastic.roll_call import RollCall

WORKERS = 4
REQUIRED = 0.95  # of the held-out digits
LIMIT = 300.0  # seconds for everything
# Workers are forked from a process that has imported torch, so that one costs no seconds to start.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["examples.elastic.worker"])


class Launcher:
    """The processes, and who is in the group."""

    def __init__(self, kills: int, every: float, seed: int) -> None:
        self.calls = RollCall()
        self.random = random.Random(seed)
        self.left_to_kill, self.every = kills, every
        self.next_kill = 0.0
        self.processes = {worker: self.start(worker) for worker in range(WORKERS)}

    def start(self, worker: int) -> BaseProcess:
        place = (worker, self.calls.store.port)
        process = FORKED.Process(target=worker_module.run, args=place, daemon=True)
        process.start()
        return process

    def start_the_dead_again(self) -> None:
        for worker, process in self.processes.items():
            if process.exitcode not in (None, 0):
                self.calls.say_death(worker)
                self.processes[worker] = self.start(worker)

    def all_train(self) -> bool:
        return len(self.calls.members) == WORKERS and not self.calls.dead

    def kill_one(self) -> None:
        """Only when all four train, so that no more than one at a time is missing."""
        if not self.all_train() or time.monotonic() < self.next_kill:
            return
        worker = self.random.randrange(WORKERS)
        print(f"worker {worker} is killed", flush=True)
        self.processes[worker].kill()
        self.processes[worker].join()
        self.left_to_kill -= 1
        self.next_kill = time.monotonic() + self.every

    def open_next_generation(self) -> bool:
        """Whether this was the last: all kills are done, and all four have trained since."""
        end = self.left_to_kill == 0 and self.all_train()
        at_least = WORKERS if not self.calls.generation else 1
        living = [worker for worker, process in self.processes.items() if process.exitcode is None]
        if not self.calls.open_next(living, at_least, end):
            return False
        if not end:
            print(f"generation {self.calls.generation}: workers {self.calls.members}", flush=True)
            self.next_kill = max(self.next_kill, time.monotonic() + self.random.uniform(0, 0.5))
        return end

    def run(self) -> list[float]:
        """Until the end; the accuracy of each worker's model."""
        end = time.monotonic() + LIMIT
        try:
            while time.monotonic() < end:
                if self.left_to_kill:
                    self.kill_one()
                self.start_the_dead_again()  # says who is dead, before all_train() is asked again
                if self.open_next_generation():
                    for process in self.processes.values():
                        process.join(60)
                    store = self.calls.store
                    return [float(store.get(f"accuracy/{worker}")) for worker in range(WORKERS)]
                time.sleep(0.005)
            raise SystemExit(f"not ready within {LIMIT:.0f} s")
        finally:
            for process in self.processes.values():
                process.kill()
                process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5, help="how many workers are killed in all")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills, at least")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    accuracies = Launcher(args.kills, args.every, args.seed).run()
    text = f"{args.kills} kills; {min(accuracies):.1%} of the held-out digits are right"
    print(f"{text}, on all workers alike: {len(set(accuracies)) == 1}")
    raise SystemExit(0 if min(accuracies) >= REQUIRED and len(set(accuracies)) == 1 else 1)


if __name__ == "__main__":
    main()
