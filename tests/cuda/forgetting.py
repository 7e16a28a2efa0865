"""Functions of Weft's Python that a test has forgotten: test_forgotten.py names them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any


def forget() -> None:
    """Lets the function that FORGET_IN_PYTHON names do nothing in this process.

    Each call that is left out is a byte in the file that EMULATED_CUDA_FORGOTTEN names.
    """
    named = os.environ.get("FORGET_IN_PYTHON")
    if not named:
        return
    module, _, function = named.rpartition(".")
    note = Path(os.environ["EMULATED_CUDA_FORGOTTEN"])

    def forgotten(*arguments: Any) -> None:
        with note.open("a") as file:
            file.write(".")

    found = importlib.import_module(module)
    assert callable(getattr(found, function))
    setattr(found, function, forgotten)
