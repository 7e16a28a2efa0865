"""Tries an installed wheel, with nothing of a checkout in reach: try_wheel.py TORCH_VERSION."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Two processes: a collective, and a call of a function that the other one has.
PROGRAM = """
import os, sys, torch, torch.distributed as dist, torch.distributed.rpc as rpc, weft
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("weft", init_method=f"file://{folder}/group", rank=rank, world_size=2)
tensor = torch.full((1 << 16,), rank + 1.0)
dist.all_reduce(tensor)
assert tensor.eq(3).all(), tensor
dist.destroy_process_group()
weft.init_rpc(f"w{rank}", rank=rank, world_size=2, init_method=f"file://{folder}/rpc")
assert rpc.rpc_sync(f"w{1 - rank}", os.getpid) != os.getpid()
assert rpc.rpc_sync(f"w{1 - rank}", torch.add, args=(tensor, 1)).eq(4).all()
rpc.shutdown()
"""


def run_two() -> None:
    """Runs the program as two processes."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen([sys.executable, "-I", "-c", PROGRAM, str(rank), folder])
            for rank in range(2)
        ]
        for worker in workers:
            assert worker.wait(timeout=200) == 0, worker.args


def main(torch_version: str) -> None:
    """Says which part fails, by the traceback of its assertion."""
    import weft

    package = Path(weft.__file__).parent
    assert package.is_relative_to(sys.prefix), package
    assert weft.__version__.endswith("+torch" + ".".join(torch_version.split(".")[:2]))
    assert (package / "py.typed").exists()
    # Gloo is loaded when ranks are on several hosts; as Weft loads it:
    ctypes.CDLL(str(package / "libweft_gloo.so"), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
    command = [sys.executable, "-m", "weft.doctor"]
    doctor = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    run_two()
    print(f"weft {weft.__version__}: doctor, all_reduce and calls work", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
