"""A program of two workers, of which the first forks: its child ends by sys.exit.

python forking_program.py RANK FILE
"""

from __future__ import annotations

import os
import select
import sys

import torch
import torch.distributed.rpc as rpc

import weft


def child(rref: rpc.RRef) -> None:
    try:
        rref.to_here()
    except RuntimeError as error:
        assert "was forked after init_rpc" in str(error), error
    else:
        raise AssertionError("the child made a call")


def main() -> None:
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    weft.init_rpc(f"worker{rank}", rank=rank, world_size=2, init_method=f"file://{meeting}")
    if rank == 0:
        rref = rpc.remote("worker1", torch.ones, args=([2],))
        rref.to_here()
        pid = os.fork()
        if pid == 0:
            child(rref)
            sys.exit(0)
        if not select.select([os.pidfd_open(pid)], [], [], 10)[0]:
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
        print("the child ended with", os.waitstatus_to_exitcode(status))
        assert rref.to_here().sum() == 2
        del rref
    rpc.shutdown()


if __name__ == "__main__":
    main()
