"""Modules here are importable by their file's name, in pytest's process and in the workers."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "rpc"):  # the worker processes are those of the RPC tests
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
