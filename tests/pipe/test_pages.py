"""The programs in docs/guide/pipe.md and docs/guide/pipe_tools.md run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs/guide"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_as_printed(tmp_path):
    skips, record = (
        next(block for block in blocks("pipe_tools.md") if word in block)
        for word in ("@skippable", "pipe.record()")
    )
    program = "\n".join(
        [
            blocks("pipe.md")[0],
            "assert all(parameter.grad is not None for parameter in model.parameters())",
            skips,
            "pipe = weft.Pipe(nn.Sequential(Early(), nn.Linear(4, 4), Late()), chunks=2)",
            "batch = torch.randn(6, 4, requires_grad=True)",
            record,
            "print(pipe.memory_report(batch))",
            "print('the end', flush=True)",
            "import os; os._exit(0)",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "bubble" in done.stdout and done.stdout.endswith("the end\n")
    assert (tmp_path / "run.svg").read_text().startswith("<svg")
    assert (tmp_path / "run.json").stat().st_size > 0
