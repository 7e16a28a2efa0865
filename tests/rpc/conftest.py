"""Test modules here are importable by their file's name, in pytest's process and in the workers."""

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
