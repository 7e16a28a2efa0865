"""The entry point of the group ``torch.backends``: torch calls it at the end of its import.

A failing entry point breaks ``import torch``. So this one throws only where a variable that asks for
Weft is misspelt: the program would run, silently without.
"""

from __future__ import annotations

import sys


def load() -> None:
    """Called by torch."""
    try:
        import weft  # noqa: F401
    except ValueError:
        raise  # of WEFT_AS_DEFAULT or WEFT_AS_PROCESS_GROUP, which ask for Weft
    except Exception as error:
        print(f"weft: not loaded: {error}", file=sys.stderr)
