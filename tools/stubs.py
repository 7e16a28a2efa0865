"""Writes the type stubs of weft._C from the built module: ./dev shell -- python tools/stubs.py [FOLDER]

mypy's stubgen reads the signatures that pybind11 puts into docstrings. tests/typing compares what
this writes with what is checked in.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("weft._C", "weft._C.pipe")
HEAD = "# Written by tools/stubs.py from the built module.\n"
# torch registers this class under a doubled name.
DOUBLED = "torch.jit.torch.jit"


def stubs(python: str = sys.executable) -> dict[str, str]:
    """File name, relative to weft/_C, and text of each stub."""
    run = "import sys; from mypy.stubgen import main; main(sys.argv[1:])"
    with tempfile.TemporaryDirectory() as folder:
        modules = [word for name in MODULES for word in ("-m", name)]
        command = [python, "-c", run, "--include-private", *modules, "-o", folder]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        made = Path(folder) / "weft" / "_C"
        return {path.name: tidied(path.read_text()) for path in sorted(made.glob("*.pyi"))}


def tidied(text: str) -> str:
    """Without pybind11's own method and without that name; formatted as all sources are."""
    lines = [line for line in text.splitlines() if "_pybind11_conduit_v1_" not in line]
    text = HEAD + "\n".join(lines).replace(DOUBLED, "torch.jit") + "\n"
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", text)
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "_C.pyi", "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "weft" / "_C"
    target.mkdir(exist_ok=True)
    for name, text in stubs().items():
        (target / name).write_text(text)
