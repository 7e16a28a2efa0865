"""What the other libraries take from libweft.so is there.

libweft.so exports what says ``WEFT_API``. The link of ``libweft_cuda.so`` leaves symbols open, for
torch brings the CUDA runtime, so a class without that word would be missed when CUDA is first used.
"""

import subprocess
from pathlib import Path

import pytest

import weft

LIBWEFT = Path(weft.library_path())


def _symbols(library, which):
    printed = subprocess.run(
        ["nm", "-D", "--without-symbol-versions", which, library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[-1] for line in printed.splitlines()}


@pytest.mark.parametrize("name", ["libweft_cuda.so", "_C.so"])
def test_libweft_has_what_another_library_needs_of_it(name):
    library = LIBWEFT.with_name(name)
    if not library.exists():
        pytest.skip(f"{name} is not built here: this torch has no CUDA")
    # Weft's own functions, tables of virtual functions and type infos, as they are mangled.
    needed = {s for s in _symbols(library, "--undefined-only") if "4weft" in s}
    assert needed, f"{name} uses nothing of libweft.so"
    assert needed <= _symbols(LIBWEFT, "--defined-only"), "WEFT_API is missing at these"
