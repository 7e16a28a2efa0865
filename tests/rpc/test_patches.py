"""The patches of torch: they fit this torch, and one that does not fit says so instead of guessing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.rpc import api, internal

from weft._torch import patches
from weft._torch.patches import batches, default, groups, shutdown, unpickler
from weft._torch.patches import patch as patching

BY_TARGET = pytest.mark.parametrize("patch", patches.ALL, ids=lambda patch: patch.target)


def place(target: str):
    """The object that has the patched function, and the function's name."""
    module, _, path = target.partition(":")
    owner, names = importlib.import_module(module), path.split(".")
    for name in names[:-1]:
        owner = getattr(owner, name)
    return owner, names[-1]


@pytest.fixture
def altered(monkeypatch):
    """Puts a function of other parameters in a patch's place, as a later torch might have it."""

    def alter(patch, function=lambda something, other=5: "torch's own answer"):
        for target in (patch.target, *patch.aliases):
            monkeypatch.setattr(*place(target), function)
        return function

    return alter


@BY_TARGET
def test_a_patch_fits_this_torch(patch):
    assert patch.mismatch() == ""


@pytest.mark.parametrize("patch", patches.AT_IMPORT, ids=lambda patch: patch.target)
def test_import_installs_a_patch_everywhere(patch):
    for target in (patch.target, *patch.aliases):
        function = getattr(*place(target))
        while function._weft_patch is not patch:  # another test may have put one over it
            function = function.__wrapped__


@BY_TARGET
def test_an_altered_signature_is_named_and_not_patched(patch, altered):
    function = altered(patch)
    with pytest.warns(RuntimeWarning) as caught:
        patch.install()
    text = str(caught[0].message)
    name = patch.target.replace(":", ".")
    assert f"{name} is (something, other=5), and Weft expects {patch.expected}" in text
    assert f"torch {torch.__version__}" in text and patch.without in text
    now = getattr(*place(patch.target))
    if patch.refuses is None:
        assert now is function


@pytest.mark.parametrize("patch", [p for p in patches.ALL if p.uses], ids=lambda p: p.target)
def test_an_altered_function_that_a_patch_calls_is_named(patch, monkeypatch):
    for used in patch.uses:
        with monkeypatch.context() as changed:
            changed.setattr(*place(used), lambda renamed: None)
            assert patch.mismatch().startswith(f"{used.replace(':', '.')} is (renamed)")


def test_import_survives_a_torch_that_differs():
    """A fresh interpreter whose torch has another monitored_barrier: one warning, and the rest works."""
    code = """
import torch.distributed as dist
dist.distributed_c10d.monitored_barrier = dist.monitored_barrier = lambda group, patience: None
import weft
dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "monitored_barrier is (group, patience), and Weft expects (group=None" in done.stderr
    assert "dist.monitored_barrier refuses groups of the backend weft" in done.stderr


def test_a_function_that_torch_no_longer_calls_by_name(monkeypatch):
    monkeypatch.setattr(api, "shutdown", lambda graceful=True, timeout=0: None)
    assert "api.shutdown does not call" in shutdown.wait_all_workers.mismatch()


def test_a_function_that_torch_no_longer_has(monkeypatch):
    monkeypatch.delattr(api, "_wait_all_workers")
    with pytest.warns(RuntimeWarning, match=r"_wait_all_workers is \(missing\)"):
        shutdown.wait_all_workers.install()
    assert not hasattr(api, "_wait_all_workers")


def test_batches_are_refused_only_where_a_weft_group_exists(altered):
    altered(batches.batch_isend_irecv)
    with pytest.warns(RuntimeWarning):
        batches.batch_isend_irecv.install()
    assert dist.batch_isend_irecv([]) == "torch's own answer"
    dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="batch_isend_irecv is refused"):
            dist.batch_isend_irecv([])
    finally:
        dist.destroy_process_group()


def test_a_default_that_cannot_be_made_is_refused(altered):
    altered(default.init_process_group)
    with pytest.warns(RuntimeWarning):
        default.init_process_group.install()
    with pytest.raises(RuntimeError, match="unset WEFT_AS_PROCESS_GROUP"):
        dist.init_process_group("gloo")


def test_the_policy_registered_is_refused_where_it_cannot_be_kept(monkeypatch):
    pickler, upstream = internal._InternalRPCPickler, internal._unpickler
    monkeypatch.setattr(pickler, "deserialize", lambda self, binary_data, tensor_table: None)
    with pytest.raises(RuntimeError, match="request_policy 'registered' is refused"):
        unpickler.set_policy("registered")
    assert internal._unpickler is upstream


def test_the_policy_comes_and_goes():
    upstream = internal._unpickler
    unpickler.set_policy("registered")
    unpickler.set_policy("registered")
    assert internal._unpickler is not upstream
    unpickler.set_policy("any")
    assert internal._unpickler is upstream


def test_installing_again_changes_nothing():
    before = dist.monitored_barrier
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups.monitored_barrier.install()
    assert dist.monitored_barrier is before


def bound(group: dict[str, int] | None = None, *rest: int, timeout: float = -1.0) -> None:
    """A function with types, to be written without them."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (bound, "(group=None, *rest, timeout=-1.0)"),
        (torch.distributed.rpc.PyRRef.to_here, "(self, timeout=-1.0)"),
        (torch._C._distributed_rpc._invoke_remote_builtin, "(arg0, arg1, arg2, *args, **kwargs)"),
        (dict.fromkeys, "(iterable, value=None, /)"),
        (type("NoSignature", (), {"__signature__": 5}), "(unknown)"),
    ],
)
def test_parameters_are_written_without_types(function, expected):
    assert patching.parameters(function) == expected


@pytest.mark.parametrize(
    ("found", "expected", "fits"),
    [
        ("(a, b=1)", "(a, b=1)", True),
        ("(a, b=2)", "(a, b=1)", False),
        ("(a, b, c)", "(a, b)", False),
        ("(a, b, c)", "(a, b, ...)", True),
        ("(a, b)", "(a, b, ...)", True),
        ("(a, bc)", "(a, b, ...)", False),
        ("(unknown)", "(...)", False),
    ],
)
def test_what_fits(found, expected, fits):
    assert patching.fits(found, expected) is fits


def test_the_device_guard_outlives_the_thread_that_asked_for_it():
    """torch 2.11 leaves a destroyed guard behind, on which the next torch.compile crashes."""
    code = """
import threading, torch, weft
for _ in range(5):
    thread = threading.Thread(target=torch._C._ensureCUDADeviceGuardSet)
    thread.start(), thread.join()
    taken = [bytearray(size) for size in (8, 16, 24, 32) * 1000]  # what was freed is written
torch._C._ensureCUDADeviceGuardSet()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
