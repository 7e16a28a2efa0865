"""A call that names a module of a package which another thread is importing."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib import _bootstrap  # type: ignore[attr-defined]

import pytest
from alone import alone  # noqa: F401  a fixture
from torch.distributed.rpc import api
from waiting import wait_until

HOOKS = """
import threading

entered, go = threading.Event(), threading.Event()
"""
PACKAGE = """
from import_race_hooks import entered, go

entered.set()
assert go.wait(30)
from import_race.inner import module
"""
MODULE = """
def function():
    return 1
"""
CALL = b"cimport_race.inner.module\nfunction\n."  # the pickle of the function


@pytest.fixture
def hooks(tmp_path, monkeypatch):
    """Of a package whose import waits until it is told to go on."""
    (tmp_path / "import_race" / "inner").mkdir(parents=True)
    (tmp_path / "import_race" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "import_race" / "inner" / "__init__.py").write_text("")
    (tmp_path / "import_race" / "inner" / "module.py").write_text(MODULE)
    (tmp_path / "import_race_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("import_race_hooks")
    for name in [name for name in sys.modules if name.startswith("import_race")]:
        del sys.modules[name]


class Kept(threading.Thread):
    """Keeps what its function returns or raises."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self.function, self.args, self.result = function, args, None

    def run(self):
        try:
            self.result = self.function(*self.args)
        except Exception as error:
            self.result = error

    @property
    def waits_for_an_import(self) -> bool:
        return self.ident in _bootstrap._blocking_on


def test_a_call_ends_no_import(hooks, alone):  # noqa: F811
    importer = Kept(importlib.import_module, "import_race.inner")
    call = Kept(api._default_pickler.deserialize, CALL, [])
    importer.start()
    assert hooks.entered.wait(30)
    call.start()
    wait_until(lambda: call.waits_for_an_import, "the call waits for the import")
    hooks.go.set()
    importer.join(30)
    call.join(30)
    assert importer.result is sys.modules["import_race.inner"], repr(importer.result)
    assert call.result() == 1
