"""Wall clocks of programs, which a test lets jump: wall_clock.c preloaded."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "wall_clock.c"
COMPILER = shutil.which("cc")


def compiled(folder: Path) -> Path:
    """The library that makes a program's wall clock another one."""
    library = folder / "wall_clock.so"
    if not library.exists():
        assert COMPILER is not None, "wall clocks need a C compiler"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def environment(folder: Path, name: str) -> dict[str, str]:
    """Of a program with the clock of this name, which is as the machine's for now."""
    clock = folder / f"{name}.clock"
    clock.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(compiled(folder)), "WALL_CLOCK_OFFSET": str(clock)}


def jump(folder: Path, name: str, to: int) -> None:
    """The clock of this name is so many seconds off the machine's from now on."""
    with (folder / f"{name}.clock").open("r+b") as file:
        file.write(struct.pack("q", to))
