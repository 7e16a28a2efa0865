"""The worker processes of tests/rpc, and the ranks of tests/c10d_plugin, serve these tests too."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "rpc", HERE.parent / "c10d_plugin"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
